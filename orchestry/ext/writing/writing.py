"""Has a model write new problems for a task, and keeps those that are right, new and telling.

A writing is a folder with a journal, a ledger and a cap of its own, like a check of a judge. The
same call again goes on there. Problems are decided on in the order of the attempts, so a writing
that was stopped keeps the same ones as one that was not.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from orchestry.backends import open_backend
from orchestry.core.concurrency import together
from orchestry.core.config import AgentConfig, BehaviorsConfig, CreditConfig, RunConfig
from orchestry.core.errors import ConfigError, TaskFault
from orchestry.core.files import refused, write_atomic
from orchestry.core.types import SPLITS, Frozen, Policy, Problem, Request
from orchestry.engine.estimate import Estimate, foretold
from orchestry.engine.graded import play
from orchestry.engine.manifest import Reason
from orchestry.engine.plan import Plan
from orchestry.engine.run import drive, in_own_loop, prepare
from orchestry.engine.scores import Verdicts
from orchestry.engine.session import Work
from orchestry.engine.worst import Dearest
from orchestry.ext.writing import offers
from orchestry.judge import structured
from orchestry.models.names import by_names
from orchestry.store.run import Store
from orchestry.store.summary import NANO
from orchestry.task.base import BaseTask
from orchestry.task.generated import Bank

TRIES, USUAL_TRIES = 5, 2.5
"""Attempts per problem asked for: at most, and as the dry run expects."""
GRADES = 4
"""Without a grade, attempts have the grades 1 to 4 in turn."""
_ASKED, _PROBLEMS, _README = "asked.json", "problems.jsonl", "README.md"
_KEPT = "kept"


class Watcher(Protocol):
    """Watches a writing. Every method must be fast and must not raise."""

    def note(self, text: str) -> None:
        """A one-line note for the user."""
        ...

    def tried(self, attempt: int, kept: int, why: str) -> None:
        """An attempt was decided on: `kept` so far, and why it was dropped ('': it was kept)."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants."""

    count: int
    solvers: tuple[str, ...] = ()
    """Models that solve, whose names may name their provider; (): the model that writes."""
    grade: int | None = None

    def graded(self, attempt: int) -> int:
        """The grade of an attempt."""
        return self.grade or attempt % GRADES + 1


class WritingReport(Frozen):
    """The results of a writing, and the output of `--json`."""

    folder: str
    file: str
    task: str
    provider: str
    model: str
    stopped: Literal["done", "budget", "away", "interrupted", "failed"]
    asked: int
    kept: int
    attempts: int
    dropped: Mapping[str, int]
    """Number of attempts by why they were dropped."""
    calls: int
    cost_usd: float
    budget_usd: float | None


def resolved(config: RunConfig, count: int) -> RunConfig:
    """The config of a writing: one provider, no judge and no learning. Raises ConfigError."""
    if config.backend != "api":
        raise ConfigError("problems are written by a served model: leave out backend=local")
    return config.model_copy(
        update={
            "judge": config.judge.model_copy(update={"enabled": False}),
            "behaviors": BehaviorsConfig(enabled=False),
            "credit": CreditConfig(share=0.0),
            "agents": {},
            "episodes": count,
            "passes": None,
        }
    )


def write_problems(config: RunConfig, asked: Asked, file: Path, watch: Watcher) -> WritingReport:
    """Writes `asked.count` problems for the config's task into `file`; see the module.

    The folder beside it, of the same name with the ending .made, keeps the journal and a README. A
    writing that stops at its budget or at Ctrl-C is returned too, with the reason in `stopped`.
    Raises ConfigError before anything is spent.
    """
    plan = _planned(config, asked, watch.note)
    if file.exists() and not (folder_of(file) / _ASKED).exists():
        raise ConfigError(f"{file} exists and no writing made it: name another file in --into")
    return in_own_loop(_write(plan, asked, file, watch))


def folder_of(file: Path) -> Path:
    """Where the journal of a file's writing lies."""
    return file.with_suffix(".made")


def _planned(
    config: RunConfig, asked: Asked, note: Callable[[str], None], need_key: bool = True
) -> Plan:
    """With the solvers as agents. Raises ConfigError for a task without problems of code, and for
    solvers without a price."""
    config = resolved(config, asked.count)
    plan = prepare(config, note, need_key=need_key)
    if not isinstance(plan.task.options, Bank):
        raise ConfigError(
            f"task {plan.task.name} takes no problems of code with gold and tests: name "
            "code_review, code_collaboration, or a task whose options extend generated.Bank"
        )
    if len(asked.solvers) > 2:
        raise ConfigError(f"{len(asked.solvers)} solvers are named: give one or two")
    both = asked.solvers and (asked.solvers[0], asked.solvers[-1])
    own = {offers.solver(place): AgentConfig(model=model) for place, model in enumerate(both)}
    named, _ = by_names(config.model_copy(update={"agents": own}), os.environ)
    config = plan.config.model_copy(update={"agents": named.agents, "prices": named.prices})
    return replace(plan, backend=open_backend(config, plan.task, need_key=need_key))


async def _write(plan: Plan, asked: Asked, file: Path, watch: Watcher) -> WritingReport:
    with Store(folder_of(file)) as store:
        _keep_settings(store, plan, asked)
        writing = Writing(plan, store, watch, asked, file)
        failure = await drive(writing)
    if writing.report is None:
        raise failure or AssertionError("a writing that did not fail has a report")
    if failure is not None:
        watch.note(str(failure))
    return writing.report


def _keep_settings(store: Store, plan: Plan, asked: Asked) -> None:
    """Raises ConfigError if the folder holds a writing with other settings, or no writing."""
    config, path = plan.config, store.folder / _ASKED
    now = {
        "task": config.task,
        "options": plan.task.options.model_dump(mode="json"),
        "provider": plan.backend.provider.name,
        "model": plan.backend.provider.model,
        "solvers": list(asked.solvers),
        "grade": asked.grade,
        "seed": config.seed,
    }
    if store.events and not path.exists():
        raise ConfigError(f"{store.folder} holds a run: name another file in --into")
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else now
    for key, value in now.items():
        if before.get(key) != value:
            raise ConfigError(
                f"{store.folder} holds a writing with {key}={before.get(key)}, not {value}: give "
                "the settings of then, or name another file in --into"
            )
    store.write(_ASKED, json.dumps(now, indent=2) + "\n")


class Writing(Work):
    """Attempts in waves, each as wide as problems are missing, until there are enough."""

    report: WritingReport | None = None
    """The report; None if the writing failed."""

    def __init__(self, plan: Plan, store: Store, watch: Watcher, asked: Asked, file: Path) -> None:
        super().__init__(plan, store, watch.note, "the same command")
        self.watch, self.asked, self.file = watch, asked, file
        self._own = [one for split in SPLITS for one in plan.task.problems(split)]
        self._kept: list[Problem] = []
        self._whys = Counter[str]()
        self._tried = 0
        self._found: dict[int, Problem | str] = {}
        """Attempts that are judged by themselves: the problem, or why it was dropped."""

    @property
    def helper(self) -> bool:
        """Whether the task's problems are for two."""
        options = self.plan.task.options
        return isinstance(options, Bank) and options.helper

    async def play(self, rate: Verdicts) -> None:
        """See Work."""
        places = max(1, self.plan.config.search.concurrency // 2)
        most = TRIES * self.asked.count
        while self._missing and self._tried < most and self.failure is None:
            first, width = self._tried, min(places, self._missing, most - self._tried)
            await self.run(self._attempt(n, rate) for n in range(first, first + width))
            await self._settle(first + width)
        if self.failure is None and (silent := self.plan.backend.gateway.verdict()):
            self.fail(silent)
        if self.failure is None and self._missing:
            self.note(
                f"{len(self._kept)} of {self.asked.count} problems were kept of {most} attempts: "
                "the same command with a larger --count makes more attempts"
            )

    @property
    def _missing(self) -> int:
        return max(0, self.asked.count - len(self._kept))

    async def _settle(self, end: int) -> None:
        """Decides on the attempts before `end` in order, up to the first that was cut off."""
        while self._tried < end and self._tried in self._found:
            found = self._found[self._tried]
            if isinstance(found, Problem) and await offers.repeats(self.tools, found, self._kept):
                found = "repeats a problem that was kept"
            if isinstance(found, Problem):
                self._kept.append(found)
            self._whys[found if isinstance(found, str) else _KEPT] += 1
            self._tried += 1
            why = found if isinstance(found, str) else ""
            self.watch.tried(self._tried, len(self._kept), why)
        self._save()

    async def _attempt(self, number: int, rate: Verdicts) -> None:
        try:
            self._found[number] = await self._offered(number, rate)
        except Exception as error:
            self.fail(error)

    async def _offered(self, number: int, rate: Verdicts) -> Problem | str:
        """The problem of an attempt, or why it is dropped."""
        gateway, config = self.plan.backend.gateway, self.plan.config
        grade, model = self.asked.graded(number), self.plan.backend.provider.model
        (reply,) = await structured.ask(
            gateway,
            [offers.question(number, grade, self.helper, model, config.seed)],
            partial(offers.read, grade=grade, helper=self.helper),
            noun="problem",
            clip=partial(structured.head, most=4000),
        )
        problem = reply.value
        if problem is None:
            return "the answer was no problem in the form asked for"
        if why := await self._wrong(problem, rate):
            return why
        return await self._agreed(problem, gateway) or problem

    async def _wrong(self, problem: Problem, rate: Verdicts) -> str:
        """What is wrong with a problem by itself."""
        if why := await offers.flawed(self.tools, problem):
            return why
        if not await self._solved(problem, rate):
            return "the task does not count its gold as solved"
        repeated = await offers.repeats(self.tools, problem, self._own)
        return "repeats a problem of the task" if repeated else ""

    async def _solved(self, problem: Problem, rate: Verdicts) -> bool:
        """Whether the task says so of its own gold."""
        task = self.plan.task
        try:
            gold = task.gold(problem)
            nodes = [] if gold is None else [play(task, problem, gold, 0)[-1]]
            return any(task.solved in score.tags for score in await rate(nodes))
        except TaskFault:
            return False

    async def _agreed(self, problem: Problem, policy: Policy) -> str:
        """Why two solvers tell nothing about it."""
        asked = _solvers(self.plan, problem)
        answers = [answer for (answer,) in await policy.sample(asked, 1)]
        if any(answer.failed for answer in answers):
            return "a solver's call failed"
        one, other = await together(
            offers.passed(self.tools, problem, offers.code_of(problem, answer))
            for answer in answers
        )
        return offers.agreement(one, other)

    def _save(self) -> None:
        """The problems kept so far, in the folder and in the user's file."""
        lines = [one.model_dump_json() for one in self._kept]
        text = "".join(f"{line}\n" for line in lines)
        self.store.write(_PROBLEMS, text)
        if not lines:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.file, text.encode())
        except OSError as error:
            self.fail(refused(self.file, error))

    def sum_up(self, reason: Reason, seconds: float) -> None:
        """See Work: README.md, which says how the problems were made."""
        self._save()
        backend, config = self.plan.backend, self.plan.config
        self.report = WritingReport(
            folder=str(self.store.folder),
            file=str(self.file),
            task=config.task,
            provider=backend.provider.name,
            model=backend.provider.model,
            stopped=reason,
            asked=self.asked.count,
            kept=len(self._kept),
            attempts=self._tried,
            dropped={why: n for why, n in self._whys.most_common() if why != _KEPT},
            calls=sum(row.calls for row in backend.gateway.usage()),
            cost_usd=backend.gateway.ledger.spent,
            budget_usd=config.budget.usd,
        )
        self.store.write(_README, _readme(self.report, self.asked))


def _solvers(plan: Plan, problem: Problem) -> list[Request]:
    found = list[Request]()
    for place in range(2):
        own = plan.config.agents.get(offers.solver(place), AgentConfig())
        model = own.model or plan.backend.provider.model
        found.append(offers.solving(problem, place, model, plan.config.seed))
    return found


def _readme(report: WritingReport, asked: Asked) -> str:
    solvers = " and ".join(asked.solvers) or f"{report.model}, asked twice"
    dropped = "".join(f"| {why} | {count} |\n" for why, count in report.dropped.items())
    grade = f"{asked.grade}" if asked.grade else f"1 to {GRADES} in turn"
    return (
        f"# {report.kept} problems for {report.task}, written by a model\n\n"
        f"Written by {report.provider}/{report.model}, of grade {grade}; solved by {solvers}. "
        f"{report.attempts} attempts, {report.calls} calls, ${report.cost_usd:.4f}.\n\n"
        f"    orchestry run --task {report.task} --set options.bank={report.file}\n\n"
        "A problem was kept if its gold passed its own tests in two runs in the sandbox, the task "
        "counts the gold as solved, no single answer passes most tests, no other problem is the "
        f"same (by {offers.ALIKE:.0%} of its words, or by what it returns), and two solvers passed "
        "different tests. Splits are by a hash of the id. Nobody has read the problems.\n\n"
        f"| dropped because | attempts |\n|---|---|\n{dropped}"
    )


def forecast(
    config: RunConfig,
    asked: Asked,
    note: Callable[[str], None],
    runs: Sequence[Path] = (),
) -> Estimate:
    """What a writing would ask and cost; raises ConfigError as the writing itself would, save for a
    missing key. It expects USUAL_TRIES attempts per problem, at most TRIES."""
    plan = _planned(config, asked, note, need_key=False)
    return in_own_loop(_forecast(plan, asked, note, runs))


async def _forecast(
    plan: Plan, asked: Asked, note: Callable[[str], None], runs: Sequence[Path]
) -> Estimate:
    task: BaseTask[Any] = plan.task
    helper = isinstance(task.options, Bank) and task.options.helper
    sample, model = plan.problems[0], plan.backend.provider.model

    async def part(policy: Policy, repairs: int = 0) -> dict[str, float]:
        """One attempt that reaches the solvers."""
        ask = offers.question(0, asked.graded(0), helper, model, plan.config.seed)
        await policy.sample([ask] * (1 + repairs) + _solvers(plan, sample), 1)
        return {"act": USUAL_TRIES * asked.count}

    dearest = Dearest(plan.backend)
    await part(dearest, repairs=1)
    worst = TRIES * asked.count * sum(dearest.nano_usd["act"]) / NANO
    return await foretold(plan, part, worst, note, runs)
