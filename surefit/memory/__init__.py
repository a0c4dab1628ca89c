"""Memory limits, and peak memory and run time predicted from shapes and measured by one step."""
