"""Retries obey the server, spread what it does not say, and end with a count."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.config import RetryConfig
from orchestry.errors import ProviderError
from orchestry.services.retry import PATIENCE_S, persist, retrying, wait_s


def _error(*, transient: bool = True, retry_after: float | None = None) -> ProviderError:
    return ProviderError("busy", transient=transient, billed=False, retry_after=retry_after)


class _Server:
    """Fails as scripted, then answers; and the clock of whoever waits for it."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        self.errors = list(errors)
        self.asked = 0
        self.waits: list[float] = []

    async def ask(self) -> str:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


async def _run(server: _Server, config: RetryConfig, seed: int = 0) -> str:
    policy = retrying(config, random.Random(seed), server.sleep)
    return await persist(server.ask, policy.copy)


async def test_a_passing_failure_is_asked_again() -> None:
    server = _Server([_error(), _error()])
    assert await _run(server, RetryConfig()) == "answer"
    assert server.asked == 3


async def test_a_lasting_failure_is_raised_at_once() -> None:
    server = _Server([_error(transient=False)])
    with pytest.raises(ProviderError, match=r"^busy$"):
        await _run(server, RetryConfig())
    assert (server.asked, server.waits) == (1, [])


@pytest.mark.parametrize("bug", [ValueError("bug"), KeyboardInterrupt()])
async def test_what_is_no_provider_error_is_not_retried(bug: BaseException) -> None:
    server = _Server([bug])  # type: ignore[list-item]
    with pytest.raises(type(bug)):
        await _run(server, RetryConfig())
    assert server.asked == 1


async def test_the_last_error_says_how_often_it_was_tried() -> None:
    server = _Server([_error()] * 9)
    with pytest.raises(ProviderError, match=r"^after 4 attempts: busy$"):
        await _run(server, RetryConfig(attempts=4))
    assert server.asked == 4


async def test_one_seed_one_schedule() -> None:
    servers = [_Server([_error()] * 5) for _ in range(3)]
    for server, seed in zip(servers, (1, 1, 2), strict=True):
        await _run(server, RetryConfig(), seed)
    assert servers[0].waits == servers[1].waits != servers[2].waits


@given(st.floats(0, 1e6), st.integers(1, 50), st.integers(), st.floats(0, 10), st.floats(0, 100))
def test_the_servers_wait_is_kept_up_to_five_minutes(
    asked: float, attempt: int, seed: int, base: float, longest: float
) -> None:
    config = RetryConfig(base_s=base, max_s=longest)
    found = wait_s(config, random.Random(seed), attempt, _error(retry_after=asked))
    kept = min(asked, PATIENCE_S)
    assert kept <= found <= kept + base


@given(st.integers(1, 50), st.integers(), st.floats(0, 10), st.floats(0, 100))
def test_without_it_the_wait_doubles_up_to_the_longest(
    attempt: int, seed: int, base: float, longest: float
) -> None:
    config = RetryConfig(base_s=base, max_s=longest)
    found = wait_s(config, random.Random(seed), attempt, _error())
    assert 0.0 <= found <= min(longest, base * 2.0 ** (attempt - 1))
