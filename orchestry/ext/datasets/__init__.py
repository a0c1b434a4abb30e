"""Data sets of functions that others published, as problems."""
