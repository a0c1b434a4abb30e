"""Schedules to compare the search with."""
