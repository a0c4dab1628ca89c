"""Everything between rows and batches, losses and predictions: one value, used by every command."""
