"""Waiting for several things at once, none of which may be left behind when another fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from orchestry.core.errors import BudgetExceeded, Interrupted

T = TypeVar("T")


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """All results in order. If some fail, the others end first: what they asked is being paid for,
    and its answers belong into the journal. Then the gravest failure is raised.
    """
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        raise gravest(errors)
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


def gravest(errors: Sequence[BaseException]) -> BaseException:
    """The one that says best why a batch failed."""
    for kind in (Interrupted, BudgetExceeded):
        for error in errors:
            if isinstance(error, kind):
                return error
    return errors[0]
