"""Checks before the first step: encoded rows, the module, probes, other people's trainers."""
