"""One vendor a file; `open_provider` picks one from the config."""
