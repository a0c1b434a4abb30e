"""The central critic: its prompts, its ranking, how good it is."""
