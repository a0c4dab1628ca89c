"""Small experiments on the real model with a few real rows, before any training."""
