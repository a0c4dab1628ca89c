"""The known causes of failures, one file per area."""
