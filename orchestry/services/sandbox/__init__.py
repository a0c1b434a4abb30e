"""Runs code that a language model wrote, and says how far that is confined."""

from __future__ import annotations

from orchestry.services.sandbox.equality import compare
from orchestry.services.sandbox.runner import SubprocessSandbox
from orchestry.types import Limits

__all__ = ["SubprocessSandbox", "compare", "open_sandbox"]


def open_sandbox(limits: Limits) -> SubprocessSandbox:
    """The sandbox of this machine, for `async with`; `level` is its line in manifest and doctor.

    `limits` hold for runs that name none.
    """
    return SubprocessSandbox(limits)
