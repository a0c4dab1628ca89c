"""Opens, builds, calls, saves and loads models."""
