"""Augmentation: copies of training rows in other words, and arrays changed in each epoch."""
