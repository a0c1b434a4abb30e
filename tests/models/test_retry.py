"""Retries obey the server, spread what it does not say, and end with a count."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.config import RetryConfig
from orchestry.core.errors import ProviderError
from orchestry.models.retry import LONGEST_ASKED_S, Breaker, persist, wait_s


def _error(
    *, transient: bool = True, billed: bool = False, retry_after: float | None = None
) -> ProviderError:
    return ProviderError("busy", transient=transient, billed=billed, retry_after=retry_after)


class _Server:
    """Fails as scripted, then answers; others are answered meanwhile, unless it is `alone`."""

    def __init__(self, errors: Sequence[Exception], alone: bool = False) -> None:
        self.errors = list(errors)
        self.alone = alone
        self.asked = 0
        self.waits: list[float] = []

    async def ask(self) -> str:
        self.asked += 1
        if not self.errors:
            return "answer"
        error = self.errors.pop(0)
        if isinstance(error, ProviderError):
            self.breaker.failed(error)
        raise error

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        if not self.alone:
            self.breaker.answered()

    async def run(self, config: RetryConfig, seed: int = 0) -> str:
        rng = random.Random(seed)
        self.breaker = Breaker("it", config, rng, lambda text: None, lambda: 0.0, self.sleep)
        return await persist(self.ask, config, self.breaker, rng, self.sleep)


async def test_a_passing_failure_is_asked_again() -> None:
    server = _Server([_error(), _error()])
    assert await server.run(RetryConfig()) == "answer"
    assert server.asked == 3


async def test_a_lasting_failure_is_raised_at_once() -> None:
    server = _Server([_error(transient=False)])
    with pytest.raises(ProviderError, match=r"^busy$"):
        await server.run(RetryConfig())
    assert (server.asked, server.waits) == (1, [])


@pytest.mark.parametrize("bug", [ValueError("bug"), KeyboardInterrupt()])
async def test_what_is_no_provider_error_is_not_retried(bug: BaseException) -> None:
    server = _Server([bug])  # type: ignore[list-item]
    with pytest.raises(type(bug)):
        await server.run(RetryConfig())
    assert server.asked == 1


@pytest.mark.parametrize(("billed", "asked"), [(False, 6), (True, 3)])
async def test_the_last_error_says_how_often_it_was_tried(billed: bool, asked: int) -> None:
    server = _Server([_error(billed=billed)] * 9)
    with pytest.raises(ProviderError, match=rf"^after {asked} attempts: busy$"):
        await server.run(RetryConfig())
    assert server.asked == asked


async def test_while_nobody_is_answered_a_free_call_is_not_given_up() -> None:
    server = _Server([_error()] * 40, alone=True)
    assert await server.run(RetryConfig()) == "answer"
    server = _Server([_error(billed=True)] * 40, alone=True)
    with pytest.raises(ProviderError, match=r"^after 3 attempts: busy$"):
        await server.run(RetryConfig())


async def test_one_seed_one_schedule() -> None:
    servers = [_Server([_error()] * 5) for _ in range(3)]
    for server, seed in zip(servers, (1, 1, 2), strict=True):
        await server.run(RetryConfig(), seed)
    assert servers[0].waits == servers[1].waits != servers[2].waits


@given(st.floats(0, 1e6), st.integers(1, 50), st.integers(), st.floats(0, 10), st.floats(0, 100))
def test_the_servers_wait_is_kept_up_to_five_minutes(
    asked: float, attempt: int, seed: int, base: float, longest: float
) -> None:
    config = RetryConfig(base_s=base, max_s=longest)
    found = wait_s(config, random.Random(seed), attempt, _error(retry_after=asked))
    kept = min(asked, LONGEST_ASKED_S)
    assert kept <= found <= kept + base


@given(st.integers(1, 5000), st.integers(), st.floats(0, 10), st.floats(0, 100))
def test_without_it_the_wait_doubles_up_to_the_longest(
    attempt: int, seed: int, base: float, longest: float
) -> None:
    config = RetryConfig(base_s=base, max_s=longest)
    found = wait_s(config, random.Random(seed), attempt, _error())
    assert 0.0 <= found <= min(longest, base * 2.0 ** min(attempt - 1, 100))
