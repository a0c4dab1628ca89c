"""A run's folder: config, plan, events, checkpoints, model."""
