"""Pure search: which trajectories live on, and what each was worth."""
