"""The run directory: the journal, and the files made from it."""
