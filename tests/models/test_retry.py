"""Retries obey the server, spread what it does not say, and end with a count."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.config import RetryConfig
from orchestry.core.errors import ProviderError, ServerAway
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


class _Clocked:
    """A server that always asks for the same pause, and a clock that its waits move."""

    def __init__(self, asked_s: float, patience_s: float) -> None:
        self.config = RetryConfig(patience_s=patience_s, base_s=0.0)
        self.asked_s, self.now, self.calls = asked_s, 0.0, 0
        self.said: list[tuple[float, str]] = []
        rng = random.Random(0)
        self.breaker = Breaker("it", self.config, rng, self.say, lambda: self.now, self.sleep)

    def say(self, text: str) -> None:
        self.said.append((self.now, text))

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def ask(self) -> str:
        async with self.breaker.turn():
            self.calls += 1
            error = _error(retry_after=self.asked_s)
            self.breaker.failed(error)
            raise error

    async def run(self) -> None:
        await persist(self.ask, self.config, self.breaker, random.Random(0), self.sleep)


@given(st.floats(2.1, 1e6), st.floats(0.1, 1e4))
async def test_a_pause_that_a_server_asks_for_is_told_and_ends_with_the_patience(
    asked_s: float, patience_s: float
) -> None:
    server = _Clocked(asked_s, patience_s)
    with pytest.raises(ServerAway, match="--patience"):
        await server.run()
    assert server.now == pytest.approx(patience_s), "patience counts from the first wait"
    if min(asked_s, patience_s) > 2.0:
        assert server.said[0][0] == 0.0, "told before it is waited for"
        assert "asks to wait" in server.said[0][1]


async def test_a_server_that_is_busy_is_asked_again_though_it_may_bill() -> None:
    busy = ProviderError("busy", transient=True, billed=True, busy=True)
    server = _Server([busy] * 5)
    assert await server.run(RetryConfig(attempts=6, billed_attempts=3)) == "answer"
