"""One trajectory, no search: what a hand-written pipeline would have done."""

from __future__ import annotations

from orchestry.search.beam import Chains


def schedule() -> Chains:
    """A single chain."""
    return Chains(n=1)
