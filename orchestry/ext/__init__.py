"""Extensions: what not every run needs. The kernel finds them by core/extensions.py alone."""
