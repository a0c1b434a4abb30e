"""Environments and optimizers of others, each in a module and an extra of its own; see
docs/bridges.md."""
