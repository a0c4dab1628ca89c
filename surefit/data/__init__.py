"""Files and objects to a Table, and a Table to encoded columns on disk."""
