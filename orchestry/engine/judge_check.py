"""The check itself: asks the judge about sets of known worth, in a run directory of its own.

Each set is shown in an order and in its reverse, each twice: four questions, asked by the judge
that a run would use, through gateway, ledger, cache and journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, Protocol

from orchestry.core.concurrency import heeding, together
from orchestry.core.config import BehaviorsConfig, CreditConfig, RunConfig, SamplingConfig
from orchestry.core.errors import BudgetExceeded, Interrupted, OrchestryError, fault
from orchestry.core.types import Completion, Frozen, Policy, Request, Siblings, Tools
from orchestry.engine.graded import GradedSet, graded_sets
from orchestry.engine.judge_folder import keep_config
from orchestry.engine.manifest import fruitless, stop_reason
from orchestry.engine.run import new_folder, prepare
from orchestry.engine.scores import Verdicts
from orchestry.engine.session import Plan
from orchestry.judge.judge import ListwiseJudge, seed_of
from orchestry.judge.measures import Advice, Measures, Reading, Sheet, advise, measure
from orchestry.judge.ranking import Order, balanced
from orchestry.models.gateway import Gateway
from orchestry.rollout.rollout import task_rater
from orchestry.sandbox import open_sandbox
from orchestry.store.journal import Opened, Stopped
from orchestry.store.run import Store

DRAWS = (0, 1)
QUESTIONS = 2 * len(DRAWS)
"""Calls a problem, repairs aside."""


class Watcher(Protocol):
    """Who watches a check; every call is cheap and none may fail."""

    def note(self, text: str) -> None:
        """Something the user should know, in one line."""
        ...

    def started(self, folder: Path, plan: Plan) -> None:
        """The gateway is open; answers are scored next."""
        ...

    def scored(self) -> None:
        """One more problem has candidates of known worth."""
        ...

    def asking(self, problems: int) -> None:
        """So many problems have candidates; the judge is asked next."""
        ...

    def examined(self, sheet: Sheet) -> None:
        """All questions on one problem are answered."""
        ...


class CheckReport(Frozen):
    """A check in one object: check.json, and what `--json` prints."""

    run_dir: str
    task: str
    provider: str
    model: str
    model_sha256: str | None = None
    stopped: Literal["done", "budget", "away", "interrupted", "failed"]
    problems: int
    """Problems finished."""
    problems_asked: int
    candidates: int
    """Answers on these problems, all told."""
    measures: Measures
    advice: Advice
    calls: int
    """Answers that the model gave; those from the cache are `cache_hits`."""
    cache_hits: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    lost_usd: float
    """The part of cost_usd set aside for calls that may have been billed but never answered."""
    budget_usd: float | None
    seconds: float
    """Wall clock of this process's part."""


def settled(config: RunConfig, problems: int) -> RunConfig:
    """The config of a check: the judge is the run's one provider, asked once a question."""
    judge = config.judge
    asked_once = {"provider": None, "enabled": True, "when": "always", "repeats": 1}
    return config.model_copy(
        update={
            "provider": judge.provider or config.provider,
            "judge": judge.model_copy(update=asked_once),
            "behaviors": BehaviorsConfig(enabled=False),
            "credit": CreditConfig(share=0.0),
            "sampling": SamplingConfig(),
            "agents": {},
            "episodes": problems,
        }
    )


def check(config: RunConfig, problems: int, run_dir: Path | None, watch: Watcher) -> CheckReport:
    """Measures the judge that a config resolves to, on `problems` problems of its task.

    A second call for the same directory goes on where the first stopped. A check that stops at its
    budget or at Ctrl-C is returned too: `stopped` says why. Raises ConfigError before anything is
    spent; any other OrchestryError leaves a directory that can be gone on with.
    """
    plan = prepare(settled(config, problems), watch.note)
    folder = run_dir or new_folder(f"judge-check--{plan.config.task}")
    return asyncio.run(_drive(plan, folder, watch))


async def _drive(plan: Plan, folder: Path, watch: Watcher) -> CheckReport:
    start = time.monotonic()
    with Store(folder) as store:
        keep_config(store, plan.config)
        async with _opened(plan, store, watch) as sets:
            exam = Exam(plan, watch)
            watch.asking(len(sets))
            with heeding(lambda: exam.interrupt(folder)):
                await exam.sit(sets)
            failure = exam.failure or plan.backend.gateway.verdict() or fruitless(plan)
            done = exam.in_order(sets)
            if failure is not None and stop_reason(failure) == "failed":
                store.journal.append(Stopped(reason="failed", at=time.time()))
                raise failure
            report = _report(plan, store, done, len(sets), failure, time.monotonic() - start)
            store.write("check.json", report.model_dump_json(indent=2) + "\n")
            store.journal.append(Stopped(reason=report.stopped, at=time.time()))
            store.journal.sync()
    if failure is not None:
        watch.note(_stopped_note(report))
    return report


@asynccontextmanager
async def _opened(plan: Plan, store: Store, watch: Watcher) -> AsyncIterator[list[GradedSet]]:
    """The sets, scored in the sandbox or by the journal, while the judge can be asked."""
    config, provider = plan.config, plan.backend.provider
    unsafe = config.allow_unsafe_code
    async with open_sandbox(config.sandbox, allow_unsafe=unsafe) as sandbox:
        rate = Verdicts(task_rater(plan.task, Tools(sandbox)), store.journal, store.events)
        async with plan.backend.open(store, plan.task, rate, watch.note):
            opened = Opened(
                at=time.time(),
                provider=provider.name,
                model=provider.model,
                providers=plan.backend.gateway.providers,
            )
            store.journal.append(opened)
            watch.note(f"sandbox level {sandbox.level}")
            watch.started(store.folder, plan)
            wanted = config.episodes
            sets = await graded_sets(plan.task, config.seed, wanted, rate, watch.scored)
            if len(sets) < wanted:
                watch.note(
                    f"only {len(sets)} problems of train and dev have answers of different worth"
                )
            yield sets


@dataclass(slots=True)
class Exam:
    """Asks a judge about sets, several at once, until all are done or something stops it."""

    plan: Plan
    watch: Watcher
    failure: OrchestryError | None = None
    _sheets: dict[str, Sheet] = field(default_factory=dict)
    _workers: list[asyncio.Task[None]] = field(default_factory=list)

    async def sit(self, sets: Sequence[GradedSet]) -> None:
        """Examines all sets; what stops it stands in `failure`.

        Only as many at once as fill the places for calls, so that a stop at the cap leaves few
        unfinished.
        """
        places = max(1, -(-self.plan.config.search.concurrency // QUESTIONS))
        queue = iter(sets)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(places, len(sets))):
                self._workers.append(group.create_task(self._work(queue)))

    def in_order(self, sets: Sequence[GradedSet]) -> list[Sheet]:
        """The finished sheets in the order of their sets."""
        names = [each.siblings.parent.problem.id for each in sets]
        return [self._sheets[name] for name in names if name in self._sheets]

    def interrupt(self, folder: Path) -> None:
        """First time: calls in flight may finish. Second time: they are given up."""
        if isinstance(self.failure, Interrupted):
            for worker in self._workers:
                worker.cancel()
            return
        self.watch.note("stopping: calls in flight may finish; press Ctrl-C again to give them up")
        self._fail(Interrupted(f"interrupted: the same command with --run-dir {folder} goes on"))

    async def _work(self, queue: Iterator[GradedSet]) -> None:
        for each in queue:
            if self.failure:
                return
            try:
                sheet = await examine(self.plan, self.plan.backend.gateway, each)
            except Exception as error:
                self._fail(error if isinstance(error, OrchestryError) else fault(error))
                return
            self._sheets[sheet.problem] = sheet
            self.watch.examined(sheet)

    def _fail(self, error: OrchestryError) -> None:
        """Keeps the first failure, a real one before a stop at the cap."""
        if self.failure is None or isinstance(self.failure, BudgetExceeded):
            self.failure = error
        if not isinstance(error, BudgetExceeded):
            self.plan.backend.gateway.close_door(str(error))


async def examine(plan: Plan, gateway: Gateway, each: GradedSet) -> Sheet:
    """The four readings of one set."""
    own = first_order(each.siblings)
    shown = list(product(DRAWS, (own, own[::-1])))
    asked = [_read(plan, Redrawn(gateway, draw), each, own, order, draw) for draw, order in shown]
    readings = tuple(await together(asked))
    return Sheet(each.siblings.parent.problem.id, each.worths_G, readings)


@dataclass(frozen=True, slots=True)
class Redrawn:
    """A policy that asks a gateway for one certain sample of each request, never for another."""

    gateway: Gateway
    draw: int

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """The samples n * draw to n * draw + n - 1."""
        from_there = {"sample_index": n * self.draw}
        redrawn = [request.model_copy(update=from_there) for request in requests]
        return await self.gateway.sample(redrawn, n)


def judge_of(plan: Plan, policy: Policy) -> ListwiseJudge:
    """The judge that a run of the config would ask."""
    config = plan.config.judge
    return ListwiseJudge(
        policy,
        plan.backend.provider.model,
        config,
        plan.task.agents,
        temperature=config.temperature,
    )


def first_order(siblings: Siblings[Any]) -> Order:
    """The order in which ListwiseJudge shows a set when it asks once."""
    return balanced(len(siblings.children), 1, seed_of(siblings))[0]


async def _read(
    plan: Plan, policy: Policy, each: GradedSet, own: Order, wanted: Order, draw: int
) -> Reading:
    """One question, with the children laid out so that the judge shows them as wanted."""
    places = dict(zip(own, wanted, strict=True))  # place of a child -> who takes it
    laid_out = [places[index] for index in range(len(own))]
    children = tuple(each.siblings.children[index] for index in laid_out)
    siblings = replace(each.siblings, children=children)
    judgement = await judge_of(plan, policy).values(siblings)
    assert judgement is not None, "it is asked always"
    said = dict(zip(laid_out, judgement.values, strict=False))  # none where malformed
    numbers = tuple(said[index].number for index in sorted(said))
    return Reading(wanted, draw, judgement.outcome, numbers)


def _report(
    plan: Plan,
    store: Store,
    sheets: Sequence[Sheet],
    asked: int,
    failure: OrchestryError | None,
    seconds: float,
) -> CheckReport:
    gateway, provider = plan.backend.gateway, plan.backend.provider
    usage, measures = gateway.usage(), measure(sheets)
    return CheckReport(
        run_dir=str(store.folder),
        task=plan.config.task,
        provider=provider.name,
        model=provider.model,
        model_sha256=getattr(provider, "sha256", None),
        stopped=stop_reason(failure),
        problems=len(sheets),
        problems_asked=asked,
        candidates=sum(len(sheet.worths_G) for sheet in sheets),
        measures=measures,
        advice=advise(measures),
        calls=sum(row.calls for row in usage),
        cache_hits=sum(row.cache_hits for row in usage),
        input_tokens=sum(row.input_tokens for row in usage),
        output_tokens=sum(row.output_tokens for row in usage),
        cost_usd=gateway.ledger.spent,
        lost_usd=gateway.ledger.lost,
        budget_usd=plan.config.budget.usd,
        seconds=seconds,
    )


def _stopped_note(report: CheckReport) -> str:
    more = f" and --budget above {report.budget_usd:g}" if report.stopped == "budget" else ""
    return (
        f"{report.problems} of {report.problems_asked} problems are measured: the same command "
        f"with --run-dir {report.run_dir}{more} goes on, and pays for no answer twice"
    )
