"""The gateway: every call to a model passes here, through memory, cache, ledger, retries and
journal.

The order makes a kill harmless: a reservation is in the journal before its request is sent, and an
answer before it is used. An answer in the journal is never asked for again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any

from orchestry.core.concurrency import Door, Sleep, together
from orchestry.core.config import RunConfig
from orchestry.core.errors import (
    BudgetExceeded,
    CallTooDear,
    ConfigError,
    Interrupted,
    Overbilled,
    PromptTooLong,
    ProviderError,
    StoreError,
    reason,
)
from orchestry.core.seeds import derive
from orchestry.core.types import MAX_CHARS, Completion, Provider, Request, sample_of, utf8
from orchestry.models.cache import AnswerCache, default_folder
from orchestry.models.http import SdkProvider
from orchestry.models.ledger import Ledger, Places
from orchestry.models.prices import PriceTable
from orchestry.models.pulse import Pulse
from orchestry.models.request_key import digest_of_key, place_of, place_of_key, request_key
from orchestry.models.retry import Breaker, doubted, persist
from orchestry.store.journal import Answered, Event, Journal
from orchestry.store.records import UsageRecord
from orchestry.store.summary import Usage, nano, provider_names, replay

LONGEST_WHY = 300
_EFFECTS = {
    "too_long": "counts as empty",
    "refused": "is missing, and its program told",
    "failed": "is missing",
}
"""What a call's failure means for its answer, by Completion.void."""


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
        self._pace, self._next_at = config.pace, 0.0
        self._retry = config.retry
        self._rng = random.Random(derive(config.seed, "retry"))
        self._servers: dict[str, tuple[Breaker, Places]] = {}
        """Providers by the first part of their keys; shared by all gateways of a run."""
        self.providers: dict[str, str] = {}
        """Their names, including those of earlier processes of the run."""
        self._breaker, self._places = self._server(provider)
        self._own: dict[str, Gateway] = {}
        """Gateways of agents that have their own provider, by agent."""
        self._memo: dict[str, Completion] = {}
        self._flying: dict[str, asyncio.Future[None]] = {}
        self._told = set[str]()
        self._answering = set[str]()
        """The models that answered, in this run or (cached) in an earlier one."""
        self._usage = Usage()
        self.pulse = Pulse()
        events = list(events)
        self.providers = provider_names(events) | self.providers
        kept = [event for event in events if isinstance(event, Answered)]
        self._doubted = doubted(kept)
        """Keys of an earlier process's doubtful failures; they are asked once more."""
        for event in kept:
            if event.key not in self._doubted or not event.completion.failed:
                self._keep(event)
            else:
                self._usage.add(event)
        self.pulse = Pulse(answers=self.pulse.answers)

    def beside(self, provider: Provider, prices: PriceTable) -> Gateway:
        """A gateway to another provider, with the same ledger, memory, cache, usage and door. Two
        gateways to one server also share its call slots and its state."""
        other = copy(self)
        other._provider, other._prices, other._own = provider, prices, {}
        other._breaker, other._places = self._server(provider)
        return other

    def route(self, agent: str, provider: Provider, prices: PriceTable) -> None:
        """From now on `sample` asks that gateway for this agent."""
        self._own[agent] = self.beside(provider, prices)

    @property
    def in_flight(self) -> int:
        """Calls in flight, over all gateways of the run."""
        return self._open["sent"]

    @property
    def paid_in_flight(self) -> int:
        """Calls in flight that may cost money; an interrupt lets them finish."""
        return self._open["paid"]

    @property
    def failed(self) -> int:
        """Calls of the run that failed for good; their samples are missing."""
        return sum(answer.void == "failed" for answer in self._memo.values())

    @property
    def refused(self) -> int:
        """Calls of the run that were refused to programs, which were told why."""
        return len(self._usage.refused)

    @property
    def away(self) -> bool:
        """Whether some calls wait for a server that is away."""
        return any(breaker.away for breaker, _ in self._servers.values())

    @property
    def in_doubt(self) -> bool:
        """Whether a call was given up and none was answered since; a setting may be wrong."""
        return any(breaker.doubt for breaker, _ in self._servers.values())

    def verdict(self) -> ProviderError | None:
        """The error of a provider that never answered, with which a block of work ends. None if an
        earlier process already stopped for it."""
        servers = self._servers.items()
        silent = (b.doubt for at, (b, _) in servers if b.doubt and at not in self._answering)
        return None if self._doubted else next(silent, None)

    def usage(self) -> tuple[UsageRecord, ...]:
        """The figures of the run's calls, over all its processes."""
        return self._usage.rows(self.providers)

    def close_door(self, reason: str) -> None:
        """From now on new attempts raise Interrupted, and so do free calls in flight; paid ones
        finish."""
        self._door.shut(Interrupted(reason))

    def check_door(self) -> None:
        """If the door is shut, raises the error of a new attempt."""
        self._door.check()

    async def keep_pace(self) -> None:
        """Waits until `pace` seconds have passed since this last returned. Raises the door's error
        if it is shut meanwhile."""
        if self._pace:
            await self._door.sleep(max(0.0, self._next_at - self._clock()))
            self._next_at = self._clock() + self._pace

    def note(self, request: Request, completion: Completion, seconds: float) -> None:
        """Records an answer of this process's own weights, in the journal and the usage."""
        key = request_key(self._provider, request)
        said = completion.model_copy(update={"tokens": None})  # they are in episodes.jsonl
        event = self._answered(None, key, request, said, seconds)
        event = event.model_copy(update={"source": "refused" if said.void else "weights"})
        self.ledger.note(event)
        self._usage.add(event)
        self._feel(event)

    async def answer(
        self,
        request: Request,
        *,
        shared: bool = False,
        started: Callable[[], None] | None = None,
    ) -> Completion:
        """The answer to one request, paid for at most once in a run. `failed` is set if the call
        failed for good.

        Raises errors that end the run: ProviderError if no request can succeed (such as a wrong
        key), ServerAway, BudgetExceeded, Interrupted.
        """
        key = request_key(self._provider, request)
        while key in self._flying:  # the same request, asked twice at once: one pays
            await asyncio.wait([self._flying[key]])
        known = self._known(key, request)
        if known is not None:
            return known
        self._flying[key] = asyncio.get_running_loop().create_future()
        try:
            return await self._persist(key, request, shared, started)
        except BudgetExceeded:  # others may still fit
            raise
        except Exception as error:
            self._door.shut(error)
            raise
        finally:
            self._flying.pop(key).set_result(None)

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """`n` samples of every request, all in flight at once; see Policy and `answer`.

        If one raises, those in flight finish first, because their answers are paid for; a resume
        finds them in the journal.
        """
        groups = [[sample_of(request, j) for j in range(n)] for request in requests]
        asked = [(self._own.get(samples[0].agent, self), samples) for samples in groups if samples]
        leaders = [gateway._leader(samples) for gateway, samples in asked]
        calls = [
            call
            for (gateway, samples), leader in zip(asked, leaders, strict=True)
            for call in gateway._calls(samples, leader)
        ]
        answers = await together(calls)
        return [answers[i * n : (i + 1) * n] for i in range(len(requests))]

    def _leader(self, samples: Sequence[Request]) -> int | None:
        """The sample to send first, if that saves money and others follow."""
        if len(samples) < 2 or not self._provider.leads(samples[0]):
            return None
        keys = (request_key(self._provider, sample) for sample in samples)
        known = [self._known(key, s) is not None for key, s in zip(keys, samples, strict=True)]
        return known.index(False) if known.count(False) > 1 else None

    def _calls(self, samples: Sequence[Request], leader: int | None) -> list[Awaitable[Completion]]:
        """All at once; or one first, to fill the vendor's prompt cache, and the others once it
        answers."""
        if leader is None:
            return [self.answer(sample) for sample in samples]
        ready = asyncio.Event()

        async def lead(sample: Request) -> Completion:
            try:
                return await self.answer(sample, shared=True, started=ready.set)
            finally:
                ready.set()

        async def follow(sample: Request) -> Completion:
            await ready.wait()
            return await self.answer(sample, shared=True)

        return [lead(s) if j == leader else follow(s) for j, s in enumerate(samples)]

    async def _persist(
        self, key: str, request: Request, shared: bool, started: Callable[[], None] | None
    ) -> Completion:
        """Makes as many attempts as needed; returns a substitute if there is no answer."""
        asked = [request]

        async def attempt() -> Completion:
            try:
                return await self._attempt(key, asked[-1], shared, started)
            except ProviderError as error:
                if error.bad_draw:  # a server that honours seeds would draw the same again
                    seed = derive(request.seed, "draw", len(asked))
                    asked.append(request.model_copy(update={"seed": seed}))
                raise

        try:
            sleep = self._door.sleep
            return await persist(attempt, self._retry, self._breaker, self._rng, sleep)
        except ProviderError as error:
            if not (error.transient or error.refused):
                raise
            void = _void(request, error)
            if isinstance(error, CallTooDear):  # no fault of the server
                return self._missing(key, request, error, void)
            if void == "failed" or (void == "refused" and self._silent):
                self._breaker.gave_up(request, error)
            return self._missing(key, request, error, void)

    @property
    def _silent(self) -> bool:
        """Whether the provider has answered nothing yet, in any process of the run."""
        return place_of(self._provider) not in self._answering

    def _server(self, provider: Provider) -> tuple[Breaker, Places]:
        """The server's state, and its call slots."""
        at = place_of(provider)
        if at not in self._servers:
            breaker = Breaker(
                provider.name, self._retry, self._rng, self._on_warn, self._clock, self._door.sleep
            )
            self._servers[at] = breaker, Places(self._concurrency)
            self.providers[at] = provider.name
        return self._servers[at]

    def _known(self, key: str, request: Request) -> Completion | None:
        """The answer from this run's memory, or from the cache (then it is journaled)."""
        known = self._memo.get(digest_of_key(key))
        if known is not None or self._cache is None or not self._provider.cacheable:
            return known
        cached = self._cache.get(key)
        if cached is None:
            return None
        event = self._answered(None, key, request, cached.model_copy(update={"usd": 0.0}), 0.0)
        event = event.model_copy(update={"saved": self._prices.cost(cached, request.model)})
        self.ledger.note(event)
        self._keep(event)
        return event.completion

    async def _attempt(
        self, key: str, request: Request, shared: bool, started: Callable[[], None] | None
    ) -> Completion:
        """One attempt, with a call slot and a reservation; only one at a time if the server is
        away."""
        if request.purpose == "embed":
            self._check_embeds(request)
        bound = self._provider.input_bound(request)
        shared |= bool(request.tools)  # the prompt after its calls begins with this one
        worst = self._prices.worst(request.model, bound, request.max_tokens, shared)
        call = await self.ledger.reserve(key, worst, request.rank, self._places, self._door.check)
        sent = False
        try:
            async with self._breaker.turn():  # the holder must not wait for money that others hold
                self._door.check()
                sent = True
                return await self._ask(call, worst, key, request, shared, started)
        finally:
            if not sent:
                self.ledger.release(call, "the run was stopped before it was sent")

    def _check_embeds(self, request: Request) -> None:
        """Raises ProviderError, which a program is told, where no embeddings can be had or paid."""
        why = ""
        if not getattr(self._provider, "embeds", False):
            why = f"provider {self._provider.name} has no embeddings: ask another server for them"
        else:
            try:
                self._prices.check([request.model])
            except ConfigError as error:
                why = str(error)
        if why:
            raise ProviderError(why, transient=False, billed=False, refused=True)

    async def _ask(
        self,
        call: int,
        worst: float,
        key: str,
        request: Request,
        shared: bool,
        started: Callable[[], None] | None,
    ) -> Completion:
        began = self._clock()
        asked = self._provider.complete(request, shared=shared, started=started)
        free = not self._provider.bills_unanswered or nano(worst) == 0
        self._open["paid"] += not free
        try:
            raw = await self._send(call, self._door.during(asked) if free else asked)
        finally:
            self._open["paid"] -= not free
        completion = self._priced(clean(raw), request, worst)
        event = self._answered(call, key, request, completion, self._clock() - began)
        if completion.failed:  # a recorded failure, which was free then too
            self.ledger.release(call, completion.failed)
            return self._stand_in(key, request, completion)
        try:
            tokens = completion.input_tokens
            most = self._prices.worst(request.model, tokens, request.max_tokens, shared)
            self.ledger.settle(event, most)
        except StoreError:  # the cache may be on another disk that still has room
            self._share(key, completion)
            raise
        self._keep(event)
        self._share(key, completion)
        return completion

    def _share(self, key: str, completion: Completion) -> None:
        if self._cache is not None and self._provider.cacheable:
            self._cache.put(key, completion)

    def _missing(self, key: str, request: Request, error: ProviderError, void: str) -> Completion:
        """A substitute for a missing answer: empty if the prompt was too long, so that the episode
        continues; one that tells a program why its call was refused; else a sample to drop."""
        why = utf8(reason(error))
        if why not in self._told:
            self._told.add(why)
            what = f"{request.agent}'s {'embedding' if request.purpose == 'embed' else 'answer'}"
            if request.purpose == "distil":
                what = f"the answer with behaviours for the {request.agent}"
            left_out = void == "failed" and request.purpose == "act"
            effect = _EFFECTS[void] + (", and its sample left out" if left_out else "")
            self._on_warn(f"{what} {effect}: {why}")
        failed = "" if void == "too_long" else why
        gone = Completion(text="", model=request.model, stop=void, failed=failed)
        return self._stand_in(key, request, gone)

    def _stand_in(self, key: str, request: Request, gone: Completion) -> Completion:
        event = self._answered(None, key, request, gone, 0.0)
        source = "failed" if gone.void == "failed" else "refused"
        event = event.model_copy(update={"source": source})
        self.ledger.note(event)
        self._keep(event)
        return gone

    def _feel(self, event: Answered) -> None:
        self.pulse.answers += event.purpose == "act"
        self.pulse.doing = event.agent if event.purpose == "act" else event.purpose
        if event.source == "provider":  # answers of own weights were counted when drawn
            self.pulse.tokens += event.completion.output_tokens

    async def _send(self, call: int, asked: Awaitable[Completion]) -> Completion:
        """The provider's answer; after a failure the reservation is closed."""
        self._open["sent"] += 1
        try:
            answer = await asked
        except ProviderError as error:
            if isinstance(error, PromptTooLong) or error.bad_draw:
                self._breaker.answered()
            elif error.transient:
                self._breaker.failed(error)  # first, because the end of this call lets others start
            self._fail(call, error.billed, str(error))
            raise
        except BaseException as error:  # cancelled, or a bug in the provider's code
            self._fail(call, self._provider.bills_unanswered, type(error).__name__)
            raise
        finally:
            self._open["sent"] -= 1
        self._breaker.answered()
        return answer

    def _fail(self, call: int, billed: bool, why: str) -> None:
        end = self.ledger.lose if billed else self.ledger.release
        end(call, utf8(why)[:LONGEST_WHY])

    def _priced(self, completion: Completion, request: Request, worst: float) -> Completion:
        usd = self._prices.cost(completion, request.model)
        if nano(usd) > nano(worst):
            count = self._open["paid"]
            others = f"{count} call{'s' * (count != 1)} in flight"
            error = Overbilled(
                f"{self._provider.name} billed ${usd:.6g} for a call that was reserved at "
                f"${worst:.6g}: its token counts are above the request's bounds, so no cap can be "
                f"kept and nothing more is asked, but {others} will be "
                "billed; results are kept: correct the server or its price, then "
                f"`orchestry resume {self.ledger.folder}`"
            )
            self._on_warn(str(error))  # also where nothing more was to be asked
            self._door.shut(error)
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
        self._usage.add(event)
        self._feel(event)
        self._memo[digest_of_key(event.key)] = event.completion  # whichever address answered
        if event.source in ("provider", "cache"):
            self._answering.add(place_of_key(event.key))


def _void(request: Request, error: ProviderError) -> str:
    """Which substitute the answer gets; see Completion.void."""
    if isinstance(error, PromptTooLong):
        return "too_long"
    return "refused" if request.programmed and error.refused else "failed"


def clean(completion: Completion, max_chars: int = MAX_CHARS) -> Completion:
    """The answer as valid Unicode of limited length, so that every file can store it."""
    read = {name: getattr(completion, name) for name in ("text", "model", "stop")}
    fixed: dict[str, Any] = {n: good for n, raw in read.items() if (good := utf8(raw)) != raw}
    calls = tuple(one.clean for one in completion.calls)
    fixed |= {} if calls == completion.calls else {"calls": calls}
    text = fixed.get("text", completion.text)
    if len(text) > max_chars:
        fixed |= {"text": text[:max_chars], "stop": "cut"}
    return completion.model_copy(update=fixed) if fixed else completion


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
    """The gateway of one run, including the calls and costs of its earlier processes.

    `events` are those already in `journal`. `besides` are other providers that will be asked
    through `Gateway.beside`. The caller opens and closes all providers.
    """
    budget, providers = config.budget, (provider, *besides)
    ledger = Ledger(budget.usd, journal, budget.warn_share, on_warn, replay(events))
    billed = any(each.bills_unanswered for each in providers)
    ledger.end_open(billed, "in flight when its process ended")
    cache = None
    if config.cache.enabled and any(each.cacheable for each in providers):
        cache = AnswerCache(config.cache.dir or default_folder(), on_warn)
    for each in providers:
        if isinstance(each, SdkProvider):
            each.warn = on_warn
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
