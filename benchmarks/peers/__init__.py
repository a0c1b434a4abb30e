"""Orchestry beside other tools, on the same work."""
