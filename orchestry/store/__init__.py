"""The run directory: the journal, and what is folded from it."""
