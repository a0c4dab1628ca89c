"""One module per file format; `open_data.py` has the registry."""
