"""Train, resume, evaluate, estimate, export, check a judge."""
