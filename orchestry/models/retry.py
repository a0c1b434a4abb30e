"""Retries: how many, how long to wait, and whether a provider's server answers at all.

A failed call is retried alone. After eight failures in a row, over all calls of the run, the server
is considered away: the whole run waits, and one call at a time probes it.
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
"""Consecutive failures, or refusals of different prompts, that no single request explains."""
QUIET_S = 2.0
"""Shorter waits, such as at a rate limit, are not reported."""
LONGEST_PAUSE_S = 30.0
"""Longest pause between free probes; after a probe that may be billed, pauses keep doubling."""
SHORTEST_PAUSE_S = 0.1


class Breaker:
    """The state of one provider's server, from the calls to it.

    `say` gets a line when the run starts to wait and when it continues. `sleep` may raise.
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
        """Why the last call was given up, if no call was answered since."""
        self._failures = 0
        self._refused = set[tuple[int, tuple[Message, ...]]]()
        self._since = 0.0
        """When the failures in a row began."""
        self._waits: float | None = None
        """When the first wait for the server began, since its last answer."""
        self._longest = 0.0
        """The longest pause that was told."""
        self._probes = 0
        self._last: ProviderError | None = None
        self.away = self._told = False
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wraps an attempt: immediate while the server answers, else one at a time after a pause.

        Raises ServerAway at the end of `retry.patience_s`.
        """
        if self.away:
            # First come, first served, so that no single request decides for all.
            async with self._turn:
                if self.away:
                    await self._pause()
                    yield
                    return
        yield

    def answered(self) -> None:
        """A call was answered, so the server is available."""
        self.answers += 1
        self._failures, self._waits, self.doubt = 0, None, None
        self._refused.clear()
        if self.away:
            self.away = False
            if self._told:
                span = _span(self._clock() - self._since)
                self._say(f"{self._name} answers again after {span}: going on")

    def failed(self, error: ProviderError) -> None:
        """An attempt failed for a temporary reason."""
        if not self._failures:
            self._since = self._clock()
        self._failures += 1
        self._last = error
        if not self.away and self._failures >= AWAY_AFTER:
            self.away, self._probes, self._told = True, 0, False
            self._waits = self._clock() if self._waits is None else self._waits

    def gave_up(self, request: Request, error: ProviderError) -> None:
        """A call failed for good; raises ProviderError if the server seems to refuse every
        request."""
        self.doubt = error
        if not error.refused:
            return
        # the samples of one prompt are refused together; programs may say the same in each episode
        self._refused.add((request.programmed * request.rank, request.messages))
        if len(self._refused) >= AWAY_AFTER:
            raise ProviderError(
                f"{AWAY_AFTER} different requests in a row were refused, the last one: {error}",
                transient=False,
                billed=False,
            )

    def asked(self, pause: float) -> float:
        """The pause that the server asks for, cut to what is left of the patience. A long one is
        said, and again if one is twice as long. Raises ServerAway where nothing is left."""
        pause = self._patient(pause)
        if pause > max(QUIET_S, 2 * self._longest):
            self._longest = pause
            why = reason(self._last) if self._last else ""
            self._say(
                f"{self._name} asks to wait ({why}): the call waits {_span(pause)}, and the run at "
                f"most {_span(self._config.patience_s)} for any answer (--patience)"
            )
        return pause

    def _patient(self, pause: float) -> float:
        """The pause, cut to what is left of `retry.patience_s` since the first wait."""
        self._waits = self._clock() if self._waits is None else self._waits
        left = self._waits + self._config.patience_s - self._clock()
        if left <= 0:
            raise ServerAway(
                f"{self._what()}, and was waited for {_span(self._config.patience_s)} "
                "(--patience): all results are kept, and `orchestry resume` continues the run"
            )
        return min(left, pause)

    async def _pause(self) -> None:
        """Waits before a probe: as long as the server asks, else twice the last pause."""
        last = self._last
        paid = last and last.billed and not last.busy
        longest = self._config.patience_s if paid else LONGEST_PAUSE_S
        pause = max(SHORTEST_PAUSE_S, 2 * self._config.base_s) * 2.0 ** min(self._probes, 30)
        pause = min(longest, pause) * self._rng.uniform(0.5, 1.0)
        self._probes += 1
        pause = self._patient(max(pause, (last and last.retry_after) or 0.0))
        if not self._told and self._clock() + pause - self._since > QUIET_S:
            self._told = True
            patience = _span(self._config.patience_s)
            self._say(f"{self._what()}: waiting, up to {patience} (--patience)")
        await self._sleep(pause)

    def _what(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        return f"{self._name} away since {since} ({reason(self._last) if self._last else ''})"


def doubted(events: Iterable[Answered]) -> set[str]:
    """Keys of calls that failed or were refused, after which their provider answered no call.

    A setting, such as the address, may have been wrong and corrected since.
    """
    waiting: dict[str, set[str]] = {}
    for event in events:
        keys = waiting.setdefault(place_of_key(event.key), set())
        if event.completion.failed:
            keys.add(event.key)
        elif event.source in ("provider", "weights"):
            keys.clear()
    return set().union(*waiting.values())


def _span(seconds: float) -> str:
    """Seconds, in words.

    >>> _span(73.4), _span(600)
    ('73.4 s', '10 min')
    """
    return f"{seconds / 60:.3g} min" if seconds >= 120 else f"{seconds:.3g} s"


_T = TypeVar("_T")
LONGEST_ASKED_S = 300.0
"""The longest pause that a server can ask for, in seconds."""


async def persist(
    attempt: Callable[[], Awaitable[_T]],
    config: RetryConfig,
    server: Breaker,
    rng: random.Random,
    sleep: Sleep,
) -> _T:
    """Makes attempts until one succeeds, fails for good, or the limit is reached.

    Attempts while the server was away don't count. A free call is not given up until the server has
    answered another call since the first failure, because until then the server may be at fault.
    Neither is one that met a server too busy, though a gateway may have billed it.
    Raises the last ProviderError, with the number of attempts, or the Breaker's ServerAway.
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
        tries, billed = tries + 1, billed + (failure.billed and not failure.busy)
        used_up = tries >= config.attempts and server.answers > answers
        if used_up or billed >= min(config.attempts, config.billed_attempts):
            raise _after(tries, failure) from failure
        pause = wait_s(config, rng, tries, failure)
        await sleep(pause if failure.retry_after is None else server.asked(pause))


def wait_s(config: RetryConfig, rng: random.Random, attempt: int, error: ProviderError) -> float:
    """Seconds to wait after the `attempt`-th attempt, counted from 1.

    A pause that the server asks for is used, up to five minutes, plus jitter so that calls refused
    together don't return together. Otherwise exponential with full jitter.
    """
    if error.retry_after is not None:
        return min(max(0.0, error.retry_after), LONGEST_ASKED_S) + rng.uniform(0.0, config.base_s)
    return rng.uniform(0.0, min(config.max_s, config.base_s * 2.0 ** min(attempt - 1, 60)))


def _after(tries: int, error: ProviderError) -> ProviderError:
    return ProviderError(
        f"after {tries} attempts: {error}" if tries > 1 else str(error),
        transient=True,
        billed=error.billed,
        busy=error.busy,
        retry_after=error.retry_after,
        bad_draw=error.bad_draw,
    )
