"""The run directory: one writer, one journal, and what is folded from it."""
