"""Data at a URL: listed, copied into the cache once per version, and then read like local files."""
