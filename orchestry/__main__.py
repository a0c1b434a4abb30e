"""`python -m orchestry` is `orchestry`."""

from orchestry.cli import main

main()
