"""The gateway: the one door to a model, where memory, cache, ledger, retries and journal meet.

The order makes a kill harmless: a reservation is in the journal before its request is sent, an
answer before anyone uses it. An answer that the journal holds is never asked for again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import partial

from orchestry.config import RunConfig
from orchestry.errors import (
    Abandoned,
    Interrupted,
    OrchestryError,
    PromptTooLong,
    ProviderError,
    StoreError,
)
from orchestry.journal import Answered, Event, Journal
from orchestry.keys import request_key
from orchestry.records import UsageRecord
from orchestry.seeds import derive
from orchestry.services.cache import AnswerCache, default_folder
from orchestry.services.door import Door, Sleep
from orchestry.services.ledger import Ledger, nano, replay
from orchestry.services.prices import PriceTable
from orchestry.services.retry import persist, retrying
from orchestry.services.usage import Meter
from orchestry.together import together
from orchestry.types import Completion, Provider, Request

MAX_CHARS = 200_000
"""A longer answer is cut: no max_tokens that a run can ask for makes one."""
LONGEST_WHY = 300


class Gateway:
    """Answers requests for one run; a Policy. Build it with `open_gateway`."""

    def __init__(
        self,
        config: RunConfig,
        provider: Provider,
        prices: PriceTable,
        ledger: Ledger,
        cache: AnswerCache | None,
        events: Iterable[Event],
        *,
        on_warn: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.ledger = ledger
        self._open = Counter[str]()
        self._provider = provider
        self._prices = prices
        self._cache = cache
        self._on_warn = on_warn
        self._clock = clock
        self._sleep = sleep
        self._door = Door(sleep)
        self._concurrency = config.search.concurrency
        self._slots = asyncio.Semaphore(self._concurrency)
        rng = random.Random(derive(config.seed, "retry"))
        self._retrying = retrying(config.retry, rng, sleep)
        self._memo: dict[str, Completion] = {}
        self._flying: dict[str, asyncio.Future[None]] = {}
        self._overbilled = False
        self._meter = Meter()
        for event in events:
            if isinstance(event, Answered):
                self._keep(event)

    def beside(self, provider: Provider, prices: PriceTable) -> Gateway:
        """The gateway to another provider, with the same ledger, memory, cache, books and door."""
        other = copy(self)
        other._provider, other._prices = provider, prices
        other._slots = asyncio.Semaphore(self._concurrency)
        return other

    @property
    def in_flight(self) -> int:
        """Calls sent and not yet answered, of all gateways beside each other."""
        return self._open["sent"]

    def usage(self) -> tuple[UsageRecord, ...]:
        """What the run's calls came to, over all its processes."""
        return self._meter.rows()

    def close_door(self, reason: str) -> None:
        """From now on new attempts raise Interrupted; those in flight finish."""
        self._door.shut(Interrupted(reason))

    def check_door(self) -> None:
        """Raises what a new attempt would raise, once the door is shut."""
        self._door.check()

    def note(self, request: Request, completion: Completion, seconds: float) -> None:
        """An answer that this process's own weights drew: into the journal and the books."""
        key = request_key(self._provider, request)
        said = completion.model_copy(update={"tokens": None})  # they stand in episodes.jsonl
        event = self._answered(None, key, request, said, seconds)
        event = event.model_copy(update={"source": "weights"})
        self.ledger.note(event)
        self._meter.add(event)

    async def answer(
        self,
        request: Request,
        *,
        shared: bool = False,
        started: Callable[[], None] | None = None,
    ) -> Completion:
        """The answer to one request, paid for at most once in a run.

        Raises ProviderError when the attempts are used up, BudgetExceeded, Interrupted.
        """
        return await self._answer(request, shared, started, self._door)

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """`n` samples of every request, all in flight at once; see Policy.

        When one fails, no further attempt of the batch begins, and those in flight finish first:
        their answers are paid for, and stand in the journal for a resume.
        """
        door = Door(self._sleep, self._door)
        groups = [[_sample(request, j) for j in range(n)] for request in requests]
        leaders = [self._leader(samples) for samples in groups]
        calls = [
            call
            for samples, leader in zip(groups, leaders, strict=True)
            for call in self._calls(samples, leader, door)
        ]
        answers = await together(calls)
        return [answers[i * n : (i + 1) * n] for i in range(len(requests))]

    def _leader(self, samples: Sequence[Request]) -> int | None:
        """The sample that is asked first, where that pays and another is asked after it."""
        if len(samples) < 2 or not self._provider.leads(samples[0]):
            return None
        keys = (request_key(self._provider, sample) for sample in samples)
        known = [self._known(key, s) is not None for key, s in zip(keys, samples, strict=True)]
        return known.index(False) if known.count(False) > 1 else None

    def _calls(
        self, samples: Sequence[Request], leader: int | None, door: Door
    ) -> list[Awaitable[Completion]]:
        """All at once, or one to fill the vendor's prompt cache and the others once it answers."""
        if leader is None:
            return [self._member(sample, False, None, door) for sample in samples]
        ready = asyncio.Event()

        async def lead(sample: Request) -> Completion:
            try:
                return await self._member(sample, True, ready.set, door)
            finally:
                ready.set()

        async def follow(sample: Request) -> Completion:
            await ready.wait()
            return await self._member(sample, True, None, door)

        return [lead(s) if j == leader else follow(s) for j, s in enumerate(samples)]

    async def _member(
        self, sample: Request, shared: bool, started: Callable[[], None] | None, door: Door
    ) -> Completion:
        """One call of a batch, whose failure shuts the batch's door."""
        try:
            return await self._answer(sample, shared, started, door)
        except Exception:
            door.shut(Abandoned("another call of the batch failed"))
            raise

    async def _answer(
        self, request: Request, shared: bool, started: Callable[[], None] | None, door: Door
    ) -> Completion:
        key = request_key(self._provider, request)
        while key in self._flying:  # the same request, asked twice at once: one pays
            await asyncio.wait([self._flying[key]])
        known = self._known(key, request)
        if known is not None:
            return known
        self._flying[key] = asyncio.get_running_loop().create_future()
        try:
            attempt = partial(self._attempt, key, request, shared, started, door)
            return await persist(attempt, lambda: self._retrying.copy(sleep=door.sleep))
        except PromptTooLong as error:
            return self._refused(key, request, error)
        finally:
            self._flying.pop(key).set_result(None)

    def _known(self, key: str, request: Request) -> Completion | None:
        """The answer of this run, or of an earlier run through the cache, which is journaled."""
        known = self._memo.get(key)
        if known is not None or self._cache is None or not self._provider.cacheable:
            return known
        cached = self._cache.get(key)
        if cached is None:
            return None
        event = self._answered(None, key, request, cached.model_copy(update={"usd": 0.0}), 0.0)
        self.ledger.note(event)
        self._keep(event)
        return event.completion

    async def _attempt(
        self,
        key: str,
        request: Request,
        shared: bool,
        started: Callable[[], None] | None,
        door: Door,
    ) -> Completion:
        """One attempt, in a slot and under a reservation."""
        async with self._slots:
            door.check()
            bound = self._provider.input_bound(request)
            worst = self._prices.worst(request.model, bound, request.max_tokens, shared)
            call = await self.ledger.reserve(key, worst)
            try:
                door.check()
            except OrchestryError:
                self.ledger.release(call, "the run was stopped before it was sent")
                raise
            began = self._clock()
            raw = await self._send(call, request, shared, started)
            completion = self._priced(clean(raw), request, worst)
            event = self._answered(call, key, request, completion, self._clock() - began)
            try:
                self.ledger.settle(event)
            except StoreError:  # the cache may lie on a disk that has room for what was paid
                self._share(key, completion)
                raise
            self._keep(event)
            self._share(key, completion)
            return completion

    def _share(self, key: str, completion: Completion) -> None:
        if self._cache is not None and self._provider.cacheable:
            self._cache.put(key, completion)

    def _refused(self, key: str, request: Request, error: PromptTooLong) -> Completion:
        """An empty answer: the episode goes on, and no resume asks for the impossible again."""
        self._on_warn(f"{request.agent}'s answer counts as empty: {error}")
        empty = Completion(text="", model=request.model, stop="too_long")
        event = self._answered(None, key, request, empty, 0.0)
        event = event.model_copy(update={"source": "refused"})
        self.ledger.note(event)
        self._keep(event)
        return empty

    async def _send(
        self, call: int, request: Request, shared: bool, started: Callable[[], None] | None
    ) -> Completion:
        """The provider's answer; a failure ends the reservation."""
        self._open["sent"] += 1
        try:
            return await self._provider.complete(request, shared=shared, started=started)
        except ProviderError as error:
            self._fail(call, error.billed, str(error))
            raise
        except BaseException as error:  # cancelled, or a fault of the provider's own code
            self._fail(call, self._provider.bills_unanswered, type(error).__name__)
            raise
        finally:
            self._open["sent"] -= 1

    def _fail(self, call: int, billed: bool, why: str) -> None:
        end = self.ledger.lose if billed else self.ledger.release
        end(call, _utf8(why)[:LONGEST_WHY])

    def _priced(self, completion: Completion, request: Request, worst: float) -> Completion:
        usd = self._prices.cost(completion, request.model)
        if nano(usd) > nano(worst) and not self._overbilled:
            self._overbilled = True
            self._on_warn(
                f"{self._provider.name} billed ${usd:.6g} for a call that was reserved at "
                f"${worst:.6g}: its token counts are above the request's bounds, so the budget "
                "can be passed by as much"
            )
        return completion.model_copy(update={"usd": usd})

    def _answered(
        self, call: int | None, key: str, request: Request, completion: Completion, seconds: float
    ) -> Answered:
        return Answered(
            call=call,
            key=key,
            agent=request.agent,
            purpose=request.purpose,
            source="cache" if call is None else "provider",
            completion=completion,
            at=self._clock(),
            seconds=seconds,
        )

    def _keep(self, event: Answered) -> None:
        self._meter.add(event)
        self._memo[event.key] = event.completion


@asynccontextmanager
async def open_gateway(
    config: RunConfig,
    provider: Provider,
    prices: PriceTable,
    journal: Journal,
    events: Sequence[Event],
    *,
    on_warn: Callable[[str], None],
    besides: Sequence[Provider] = (),
    clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> AsyncIterator[Gateway]:
    """The gateway of one run, with what its earlier processes asked, paid and left open.

    `events` are those already in `journal`; `besides` are other providers that will be asked,
    through `Gateway.beside`. All of them are the caller's to open and close.
    """
    budget, providers = config.budget, (provider, *besides)
    ledger = Ledger(budget.usd, journal, budget.warn_share, on_warn, replay(events))
    billed = any(each.bills_unanswered for each in providers)
    ledger.end_open(billed, "in flight when its process ended")
    cache = None
    if config.cache.enabled and any(each.cacheable for each in providers):
        cache = AnswerCache(config.cache.dir or default_folder(), on_warn)
    try:
        yield Gateway(
            config,
            provider,
            prices,
            ledger,
            cache,
            events,
            on_warn=on_warn,
            clock=clock,
            sleep=sleep,
        )
    finally:
        if cache is not None:
            cache.close()


def clean(completion: Completion, max_chars: int = MAX_CHARS) -> Completion:
    """The answer as text that every file takes: valid Unicode, and of bounded length."""
    read = {name: getattr(completion, name) for name in ("text", "model", "stop")}
    fixed = {name: good for name, raw in read.items() if (good := _utf8(raw)) != raw}
    text = fixed.get("text", completion.text)
    if len(text) > max_chars:
        fixed |= {"text": text[:max_chars], "stop": "cut"}
    return completion.model_copy(update=fixed) if fixed else completion


def _utf8(text: str) -> str:
    """Surrogates that stand alone, which JSON can carry and UTF-8 can't, become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _sample(request: Request, number: int) -> Request:
    """The number-th sample from the request's own on."""
    index = request.sample_index + number
    return request.model_copy(update={"sample_index": index, "seed": derive(request.seed, index)})
