"""Environments and tools of others, each with an extra of its own."""
