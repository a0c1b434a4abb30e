"""Trees of trajectories: played by the one loop over turns, pruned, valued, credited."""
