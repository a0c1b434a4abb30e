"""Retries: how often, and how long to wait, when an attempt fails for a reason that may pass."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
)

from orchestry.config import RetryConfig
from orchestry.errors import ProviderError

T = TypeVar("T")
PATIENCE_S = 300.0
"""The longest wait that a server can ask for, in seconds."""


def retrying(
    config: RetryConfig,
    rng: random.Random,
    sleep: Callable[[float], Awaitable[None]],
) -> AsyncRetrying:
    """Calls a function until it succeeds, fails for good, or the attempts are used up.

    The last ProviderError is raised again with the number of attempts. Use a `copy()` for each
    call, in `persist`: tenacity keeps its state on the object.
    """

    def wait(state: RetryCallState) -> float:
        return wait_s(config, rng, state.attempt_number, _error(state))

    return AsyncRetrying(
        sleep=sleep,
        stop=stop_after_attempt(config.attempts),
        wait=wait,
        retry=retry_if_exception(lambda e: isinstance(e, ProviderError) and e.transient),
        retry_error_callback=_give_up,
    )


async def persist(attempt: Callable[[], Awaitable[T]], policy: Callable[[], AsyncRetrying]) -> T:
    """Attempts as the policy says.

    tenacity takes time even where nothing fails, so it comes in with the first failure, which it
    is told as that of its own first attempt.
    """
    try:
        return await attempt()
    except ProviderError as error:
        first = [error]

    async def again() -> T:
        if first:
            raise first.pop()
        return await attempt()

    return await policy()(again)


def wait_s(config: RetryConfig, rng: random.Random, attempt: int, error: ProviderError) -> float:
    """Seconds to wait after the `attempt`-th attempt, counted from 1.

    What the server asks for is kept up to five minutes, and spread upwards so that calls refused
    together don't come back together; without it, exponential with full jitter.
    """
    if error.retry_after is not None:
        return min(max(0.0, error.retry_after), PATIENCE_S) + rng.uniform(0.0, config.base_s)
    return rng.uniform(0.0, min(config.max_s, config.base_s * 2.0 ** (attempt - 1)))


def _error(state: RetryCallState) -> ProviderError:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, ProviderError)
    return error


def _give_up(state: RetryCallState) -> NoReturn:
    error = _error(state)
    tries = f"after {state.attempt_number} attempts: " if state.attempt_number > 1 else ""
    raise ProviderError(
        f"{tries}{error}",
        transient=True,
        billed=error.billed,
        retry_after=error.retry_after,
    ) from error
