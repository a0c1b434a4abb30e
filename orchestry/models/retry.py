"""Retries: how often, and how long to wait, when an attempt fails for a reason that may pass."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from orchestry.core.config import RetryConfig
from orchestry.core.door import Sleep
from orchestry.core.errors import ProviderError
from orchestry.models.breaker import Breaker

T = TypeVar("T")
LONGEST_ASKED_S = 300.0
"""The longest wait that a server can ask for, in seconds."""


async def persist(
    attempt: Callable[[], Awaitable[T]],
    config: RetryConfig,
    server: Breaker,
    rng: random.Random,
    sleep: Sleep,
) -> T:
    """Attempts until one succeeds, fails for good, or they are used up.

    Those during which the server was away for all count nothing. A call that costs nothing is not
    given up before the server has answered another one since its first failure: until then the
    fault may be the server's. Raises the last ProviderError, with the number of attempts.
    """
    tries, billed, answers = 0, 0, server.answers
    while True:
        try:
            return await attempt()
        except ProviderError as error:
            if not error.transient:
                raise
            failure = error
        if not tries:
            answers = server.answers
        if server.away:
            continue
        tries, billed = tries + 1, billed + failure.billed
        used_up = tries >= config.attempts and server.answers > answers
        if used_up or billed >= min(config.attempts, config.billed_attempts):
            raise _after(tries, failure) from failure
        await sleep(wait_s(config, rng, tries, failure))


def wait_s(config: RetryConfig, rng: random.Random, attempt: int, error: ProviderError) -> float:
    """Seconds to wait after the `attempt`-th attempt, counted from 1.

    What the server asks for is kept up to five minutes, and spread upwards so that calls refused
    together don't come back together; without it, exponential with full jitter.
    """
    if error.retry_after is not None:
        return min(max(0.0, error.retry_after), LONGEST_ASKED_S) + rng.uniform(0.0, config.base_s)
    return rng.uniform(0.0, min(config.max_s, config.base_s * 2.0 ** min(attempt - 1, 60)))


def _after(tries: int, error: ProviderError) -> ProviderError:
    return ProviderError(
        f"after {tries} attempts: {error}" if tries > 1 else str(error),
        transient=True,
        billed=error.billed,
        retry_after=error.retry_after,
    )
