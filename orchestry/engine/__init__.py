"""Commands without a terminal: train, resume, evaluate, estimate, export, check a judge."""
