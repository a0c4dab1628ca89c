"""The loop, and what it is made of."""
