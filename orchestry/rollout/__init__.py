"""Trees of trajectories: schedules, values, credit."""
