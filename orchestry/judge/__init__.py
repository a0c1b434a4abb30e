"""The central critic: what it is asked, how its answers are read, and how good it is."""
