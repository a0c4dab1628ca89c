"""Your data as torch Datasets and DataLoaders that stay on disk, for your own loop."""
