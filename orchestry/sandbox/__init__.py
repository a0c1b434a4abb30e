"""Runs code that models wrote where it can reach nothing."""

from __future__ import annotations

from orchestry.core.types import Limits
from orchestry.sandbox.pool import ForkServers

__all__ = ["ForkServers", "open_sandbox"]


def open_sandbox(
    limits: Limits, level: int | None = None, *, allow_unsafe: bool = False
) -> ForkServers:
    """The sandbox of this machine, for `async with`; then `level` is its line for the manifest.

    `limits` hold for runs that name none. `level` forces one of 1 to 4; without it the
    strongest that this machine allows is taken, the unconfined 4 only where `allow_unsafe`.
    """
    return ForkServers(limits, level, allow_unsafe=allow_unsafe)
