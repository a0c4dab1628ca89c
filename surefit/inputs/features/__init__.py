"""Feature sequences: how the axes of an array are read."""
