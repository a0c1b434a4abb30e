"""The server that benchmarks and tests ask: the Messages API and chat completions on loopback."""
