"""A server that acts as scripted, and a run directory whose processes come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ProviderError
from orchestry.core.types import Completion, Message, Provider, Request
from orchestry.models.gateway import Gateway, open_gateway
from orchestry.models.prices import price_table
from orchestry.store import journal
from orchestry.store.journal import Journal

INPUT, OUTPUT = 10, 20
"""Tokens of every answer; a token costs a micro-dollar."""
USD = (INPUT + OUTPUT) / 1e6
WORST = (2 * INPUT + 2 * OUTPUT) / 1e6
Act = Callable[[Request], Awaitable[str]]


def ask(text: str = "hello", seed: int = 7) -> Request:
    return Request(
        agent="writer",
        model="m",
        messages=(Message(role="user", content=text),),
        max_tokens=2 * OUTPUT,
        seed=seed,
    )


class Server:
    """A provider and its vendor in one: bills every request that reaches it, then acts."""

    name, base_url, model = "server", "", "m"
    deterministic, cacheable, bills_unanswered = True, True, True
    slots: int | None = None

    def __init__(self, act: Act | None = None, leading: bool = False) -> None:
        self.act = act
        self.leading = leading
        self.billed_usd = 0.0
        self.asked: list[Request] = []
        self.shared: list[bool] = []
        self.now = 0
        self.most = 0
        self.output_tokens = OUTPUT

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        self.asked.append(request)
        self.shared.append(shared)
        self.billed_usd += USD
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            text = await self.act(request) if self.act else ""
        except ProviderError as error:
            self.billed_usd -= 0.0 if error.billed else USD
            raise
        finally:
            self.now -= 1
        if started is not None:
            started()
        await asyncio.sleep(0)
        return Completion(
            text=text or f"{request.messages[0].content} {request.sample_index} {request.seed}",
            model="m",
            input_tokens=INPUT,
            output_tokens=self.output_tokens,
        )

    def input_bound(self, request: Request) -> int:
        return 2 * INPUT

    def leads(self, request: Request) -> bool:
        return self.leading

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


def fault(*, transient: bool = True, billed: bool = False, refused: bool = False) -> ProviderError:
    return ProviderError("no luck", transient=transient, billed=billed, refused=refused)


def _config(folder: Path, **changes: Any) -> RunConfig:
    raw: dict[str, Any] = {
        "prices": {"m": {"input": 1.0, "output": 1.0}},
        "cache": {"dir": folder / "cache"},
        "retry": {"attempts": 3, "base_s": 0.0, "patience_s": 60.0},
        "budget": {"usd": 1.0},
    }
    return validate(raw | changes)


class Run:
    """A run directory whose processes come and go."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.path = folder / "journal.jsonl"
        self.config = _config(folder, **changes)
        self.warnings: list[str] = []
        self.waits: list[float] = []
        self.now = 1000.0
        """The run's clock, which goes on while it sleeps."""

    @property
    def events(self) -> list[journal.Event]:
        return list(journal.read(self.path)) if self.path.exists() else []

    @asynccontextmanager
    async def open(self, server: Provider) -> AsyncIterator[Gateway]:
        log = Journal(self.path)
        prices = price_table(server, self.config)
        try:
            async with open_gateway(
                self.config,
                server,
                prices,
                log,
                self.events,
                on_warn=self.warnings.append,
                clock=lambda: self.now,
                sleep=self.sleep,
            ) as gateway:
                yield gateway
        finally:
            log.close()

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def kinds(run: Run) -> list[str]:
    return [event.kind for event in run.events]


async def step(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)
