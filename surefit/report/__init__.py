"""A Run to pictures and pages."""
