"""One opener per file format."""
