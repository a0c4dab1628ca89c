"""One row to the numbers a model reads: Encoder and Store."""
