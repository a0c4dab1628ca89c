"""What every other room stands on: files, foreign text, errors, progress."""
