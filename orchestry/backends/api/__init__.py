"""Learning by prompts: behaviours that have passed a test."""
