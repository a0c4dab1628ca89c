"""What is learned: classes, numbers, tokens; their losses, metrics and baselines."""
