"""What runs in the sandbox's own processes: standard library only, sent there as compiled code."""
