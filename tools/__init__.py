"""What makes the documentation: commands for maintainers, run from the repository root."""
