"""What users write, and helpers for problems and rewards."""
