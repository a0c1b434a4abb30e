"""What stands beside the kernel, which reaches it by the table in core/extensions.py alone."""
