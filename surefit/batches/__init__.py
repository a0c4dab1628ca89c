"""Which rows go together, and how they become tensors."""
