"""What is in a data set, and how a model would see one row of it."""
