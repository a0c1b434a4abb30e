"""Runs code that models wrote, confined from all else."""

from __future__ import annotations

from orchestry.core.types import Limits
from orchestry.sandbox.pool import ForkServers

__all__ = ["ForkServers", "open_sandbox"]


def open_sandbox(
    limits: Limits, level: int | None = None, *, allow_unsafe: bool = False
) -> ForkServers:
    """The sandbox of this machine, for `async with`; then `level` is its line for the manifest.

    `limits` are the default for runs. `level` forces one of 1 to 4; by default the strongest that
    this machine supports is used, and the unconfined 4 only with `allow_unsafe`.
    """
    return ForkServers(limits, level, allow_unsafe=allow_unsafe)
