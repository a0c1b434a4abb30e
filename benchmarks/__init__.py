"""Benchmarks: commands that measure, and write docs/benchmarks.md. Run from the repository root."""
