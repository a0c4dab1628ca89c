"""What makes training fast: sparse head, fused LoRA, varlen attention, clipping, compile."""
