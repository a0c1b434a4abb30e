"""Train, resume, evaluate, estimate, export."""
