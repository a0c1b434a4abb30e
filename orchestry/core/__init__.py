"""Types, errors, the config, seeds, files and concurrency."""
