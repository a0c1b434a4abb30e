"""The central judge: its prompts, ranking and quality."""
