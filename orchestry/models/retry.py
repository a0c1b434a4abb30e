"""Retries: how often and how long to wait, and whether a provider's server answers at all.

One failed call is retried alone. After eight failures in a row, over all calls of the run, the
fault is the server's: a breaker makes the whole run wait, and one call at a time asks for all of
them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from orchestry.core.concurrency import Sleep
from orchestry.core.config import RetryConfig
from orchestry.core.errors import ProviderError, ServerAway, reason
from orchestry.core.types import Message, Request
from orchestry.models.request_key import place_of_key
from orchestry.store.journal import Answered

AWAY_AFTER = 8
"""Failures, or refusals of different prompts, in a row that are no single request's fault."""
QUIET_S = 2.0
"""A shorter wait is not worth a line: one burst of refused calls, say, at a rate limit."""
LONGEST_PAUSE_S = 30.0
"""Between two probes that cost nothing; after one that may be billed, pauses double on."""
SHORTEST_PAUSE_S = 0.1


class Breaker:
    """What one provider's calls tell of its server.

    `say` gets a line when the run begins to wait, and one when it goes on. `sleep` may raise.
    """

    def __init__(
        self,
        name: str,
        config: RetryConfig,
        rng: random.Random,
        say: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Sleep,
    ) -> None:
        self._name, self._config, self._rng = name, config, rng
        self._say, self._clock, self._sleep = say, clock, sleep
        self.answers = 0
        """Answers of this process so far."""
        self.doubt: ProviderError | None = None
        """Why the last call was given up, where no call was answered since."""
        self._failures = 0
        self._refused = set[tuple[Message, ...]]()
        self._since = self._opened = 0.0
        self._probes = 0
        self._last: ProviderError | None = None
        self.away = self._told = False
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Around an attempt: at once while the server answers, else alone and after a pause.

        Raises ServerAway at the end of `retry.patience_s`.
        """
        if self.away:
            async with self._turn:  # first come, first served: no one request speaks for all
                if self.away:
                    await self._pause()
                    yield
                    return
        yield

    def answered(self) -> None:
        """A call was answered: the server is there."""
        self.answers += 1
        self._failures, self.doubt = 0, None
        self._refused.clear()
        if self.away:
            self.away = False
            if self._told:
                span = _span(self._clock() - self._since)
                self._say(f"{self._name} answers again after {span}: going on")

    def failed(self, error: ProviderError) -> None:
        """An attempt failed for a reason that may pass."""
        if not self._failures:
            self._since = self._clock()
        self._failures += 1
        self._last = error
        if not self.away and self._failures >= AWAY_AFTER:
            self.away, self._opened = True, self._clock()
            self._probes, self._told = 0, False

    def gave_up(self, request: Request, error: ProviderError) -> None:
        """A call failed for good; raises ProviderError where no request seems to be taken."""
        self.doubt = error
        if not error.refused:
            return
        self._refused.add(request.messages)  # the samples of one prompt are refused together
        if len(self._refused) >= AWAY_AFTER:
            raise ProviderError(
                f"{AWAY_AFTER} different requests in a row were refused, the last one: {error}",
                transient=False,
                billed=False,
            )

    async def _pause(self) -> None:
        """Before a probe: as long as the server asks, else twice as long as the last one."""
        left = self._opened + self._config.patience_s - self._clock()
        if left <= 0:
            raise ServerAway(
                f"{self._what()}, and was waited for {_span(self._config.patience_s)} "
                "(--patience): all results are kept, and `orchestry resume` continues the run"
            )
        last = self._last
        longest = self._config.patience_s if last and last.billed else LONGEST_PAUSE_S
        pause = max(SHORTEST_PAUSE_S, 2 * self._config.base_s) * 2.0 ** min(self._probes, 30)
        pause = min(longest, pause) * self._rng.uniform(0.5, 1.0)
        pause = min(left, max(pause, (last and last.retry_after) or 0.0))
        self._probes += 1
        if not self._told and self._clock() + pause - self._since > QUIET_S:
            self._told = True
            patience = _span(self._config.patience_s)
            self._say(f"{self._what()}: waiting, up to {patience} (--patience)")
        await self._sleep(pause)

    def _what(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        return f"{self._name} away since {since} ({reason(self._last) if self._last else ''})"


def doubted(events: Iterable[Answered]) -> set[str]:
    """Keys of the calls that failed for good, and after which their provider answered none.

    Where it was a setting that failed them, a wrong address say, it may have been corrected.
    """
    waiting: dict[str, set[str]] = {}
    for event in events:
        keys = waiting.setdefault(place_of_key(event.key), set())
        if event.source == "failed":
            keys.add(event.key)
        elif event.source == "provider":
            keys.clear()
    return set().union(*waiting.values())


def _span(seconds: float) -> str:
    """Seconds, in words.

    >>> _span(73.4), _span(600)
    ('73 s', '10 min')
    """
    return f"{seconds / 60:.3g} min" if seconds >= 120 else f"{seconds:.3g} s"


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
