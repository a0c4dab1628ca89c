"""Metrics as sums over batches."""
