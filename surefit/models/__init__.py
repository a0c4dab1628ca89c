"""Models: opened, sized to the data, called, saved and loaded again."""
