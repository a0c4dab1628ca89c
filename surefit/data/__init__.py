"""Files and Python objects to a Table."""
