"""Python objects as data: data frames, Datasets, DataLoaders, lists of rows."""
