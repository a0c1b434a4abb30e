"""Code for the sandbox's own processes: standard library only, sent there compiled."""
