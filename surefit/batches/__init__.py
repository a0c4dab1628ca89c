"""Which rows are batched together, and how they become tensors."""
