"""Rows of tables: columns of numbers, categories and dates as one vector."""
