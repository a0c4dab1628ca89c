"""The checks before the first step: data against model, and what will be learned."""
