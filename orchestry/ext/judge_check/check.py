"""Checks a judge: asks it about answers with known scores, in a run directory.

Each set is shown in one order and in its reverse, each twice: four questions, asked by the judge
that a run would use, through gateway, ledger, cache and journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, Protocol

from orchestry.core.concurrency import together
from orchestry.core.config import (
    BehaviorsConfig,
    CreditConfig,
    RunConfig,
    SamplingConfig,
)
from orchestry.core.errors import ConfigError
from orchestry.core.files import CHECK
from orchestry.core.resolve import Mark, leaves, marks, read_config_file
from orchestry.core.types import Completion, Frozen, Policy, Request, Siblings
from orchestry.engine.graded import GradedSet, graded_sets
from orchestry.engine.manifest import Reason
from orchestry.engine.plan import Plan
from orchestry.engine.run import drive, in_own_loop, new_run_folder, prepare
from orchestry.engine.scores import Verdicts
from orchestry.engine.session import Work
from orchestry.ext.judge_check.measures import (
    Advice,
    JudgeMeasures,
    Reading,
    Sheet,
    advise,
    measure,
)
from orchestry.judge.judge import seed_of
from orchestry.judge.ranking import Order, balanced
from orchestry.models.gateway import Gateway
from orchestry.store.run import Store

_DRAWS = (0, 1)
QUESTIONS = 2 * len(_DRAWS)
"""Calls per problem, without repairs."""


class Watcher(Protocol):
    """Watches a check. Every method must be fast and must not raise."""

    def note(self, text: str) -> None:
        """A one-line note for the user."""
        ...

    def started(self, folder: Path, plan: Plan) -> None:
        """The gateway is open; answers are scored next."""
        ...

    def scored(self) -> None:
        """One more problem's answers are scored."""
        ...

    def asking(self, problems: int) -> None:
        """All answers are scored, for that many problems; the judge is asked next."""
        ...

    def examined(self, sheet: Sheet) -> None:
        """All questions on one problem are answered."""
        ...


class CheckReport(Frozen):
    """The results of a check: check.json, and the output of `--json`."""

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
    """Number of answers over all problems."""
    measures: JudgeMeasures
    advice: Advice
    calls: int
    """Answers from the model; answers from the cache count in `cache_hits`."""
    cache_hits: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    lost_usd: float
    """The part of cost_usd that is charged for calls that may have been billed but were never
    answered."""
    budget_usd: float | None
    seconds: float
    """Wall-clock seconds of this process."""


def resolved(config: RunConfig, problems: int) -> RunConfig:
    """The config of a check: the judge is the run's only provider and is asked once per
    question."""
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
            "passes": None,
        }
    )


def check_judge(
    config: RunConfig, problems: int, run_dir: Path | None, watch: Watcher
) -> CheckReport:
    """Measures a config's judge on `problems` problems of its task.

    A second call for the same directory continues the check. A check that stops at its budget or at
    Ctrl-C is returned too, with the reason in `stopped`. Raises ConfigError before anything is
    spent. After any other OrchestryError the check can be continued.
    """
    plan = prepare(resolved(config, problems), watch.note)
    folder = run_dir or new_run_folder(f"judge-check--{plan.config.task}")
    return in_own_loop(_check(plan, folder, watch))


def _keep_config(store: Store, config: RunConfig) -> None:
    """Writes the config of a new check, or compares it with the one that is continued.

    Raises ConfigError if the directory holds another check, or no check.
    """
    path = store.folder / CHECK
    if not path.exists() and store.events:
        raise ConfigError(
            f"{store.folder} holds a run, not a judge check: choose another --run-dir"
        )
    if path.exists():
        plain = config.model_dump(mode="json", by_alias=True)
        before, now = dict(leaves(read_config_file(path))), dict(leaves(plain))
        for key in sorted(before.keys() | now.keys()):
            if not _free(key) and before.get(key) != now.get(key):
                raise ConfigError(
                    f"{store.folder} holds a check with {key}={before.get(key)}, not "
                    f"{now.get(key)}: give the settings of then, or choose another --run-dir"
                )
    store.write(CHECK, config.to_yaml())


def _free(key: str) -> bool:
    """Keys that may change when a check is continued, because they change no question: those that a
    resume accepts, and the search."""
    return key.startswith("search.") or Mark.RESUMABLE in marks(RunConfig, key)


async def _check(plan: Plan, folder: Path, watch: Watcher) -> CheckReport:
    with Store(folder) as store:
        _keep_config(store, plan.config)
        exam = Exam(plan, store, watch)
        failure = await drive(exam)
    if exam.report is None:
        raise failure or AssertionError("a check that did not fail has a report")
    if failure is not None:
        watch.note(_stopped_note(exam.report))
    return exam.report


class Exam(Work):
    """Asks a judge about sets, several at once, until all are done or the check is stopped."""

    report: CheckReport | None = None
    """The report; None if the check failed."""

    def __init__(self, plan: Plan, store: Store, watch: Watcher) -> None:
        super().__init__(plan, store, watch.note, f"the same command with --run-dir {store.folder}")
        self.watch = watch
        self._sets: list[GradedSet] = []
        self._sheets: dict[str, Sheet] = {}

    def begin(self, level: str) -> None:
        """See Work."""
        super().begin(level)
        self.watch.started(self.store.folder, self.plan)

    async def play(self, rate: Verdicts) -> None:
        """See Work: scores the sets, then examines the judge on all of them.

        Only as many sets at once as fill the call slots, so that a stop at the cap leaves few
        unfinished.
        """
        await self.run([self._grade(rate)])
        if self.failure:
            return
        self.watch.asking(len(self._sets))
        places = max(1, -(-self.plan.config.search.concurrency // QUESTIONS))
        queue = iter(self._sets)
        await self.run(self._work(queue) for _ in range(min(places, len(self._sets))))
        if self.failure is None and (silent := self.plan.backend.gateway.verdict()):
            self.fail(silent)

    def sum_up(self, reason: Reason, seconds: float) -> None:
        """See Work: writes check.json if there are results."""
        if reason != "failed":
            self.report = _report(self.plan, self.store, self._finished, reason, seconds)
            text = self.report.model_dump_json(indent=2)
            self.store.write("check.json", text + "\n")

    @property
    def _finished(self) -> tuple[list[Sheet], int]:
        """The finished sheets in the order of their sets, and the planned number."""
        names = [each.siblings.parent.problem.id for each in self._sets]
        return [self._sheets[name] for name in names if name in self._sheets], len(names)

    async def _grade(self, rate: Verdicts) -> None:
        config = self.plan.config
        try:
            self._sets = await graded_sets(
                self.plan.task, config.seed, config.episodes, rate, self.watch.scored
            )
        except Exception as error:
            self.fail(error)
        if 0 < len(self._sets) < config.episodes:
            self.note(
                f"only {len(self._sets)} problems of train and dev have answers of different scores"
            )

    async def _work(self, queue: Iterator[GradedSet]) -> None:
        for each in queue:
            if self.failure:
                return
            try:
                sheet = await _examine(self.plan, self.plan.backend.gateway, each)
            except Exception as error:
                self.fail(error)
                return
            self._sheets[sheet.problem] = sheet
            self.watch.examined(sheet)


async def _examine(plan: Plan, gateway: Gateway, each: GradedSet) -> Sheet:
    """The four readings of one set."""
    own = first_order(each.siblings)
    shown = list(product(_DRAWS, (own, own[::-1])))
    asked = [_read(plan, Redrawn(gateway, draw), each, own, order, draw) for draw, order in shown]
    readings = tuple(await together(asked))
    return Sheet(each.siblings.parent.problem.id, each.worths_G, readings)


@dataclass(frozen=True, slots=True)
class Redrawn:
    """A policy that always asks a gateway for the same sample number."""

    gateway: Gateway
    draw: int

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """The samples n * draw to n * draw + n - 1."""
        from_there = {"sample_index": n * self.draw}
        redrawn = [request.model_copy(update=from_there) for request in requests]
        return await self.gateway.sample(redrawn, n)


def first_order(siblings: Siblings[Any]) -> Order:
    """ListwiseJudge's order for a single question."""
    return balanced(len(siblings.children), 1, seed_of(siblings))[0]


async def _read(
    plan: Plan, policy: Policy, each: GradedSet, own: Order, wanted: Order, draw: int
) -> Reading:
    """One question, with the children arranged so that the judge shows them in the wanted order."""
    places = dict(zip(own, wanted, strict=True))  # place -> child
    laid_out = [places[index] for index in range(len(own))]
    children = tuple(each.siblings.children[index] for index in laid_out)
    siblings = replace(each.siblings, children=children)
    judgement = await plan.judge(policy).values(siblings)
    assert judgement is not None, "it is asked always"
    said = dict(zip(laid_out, judgement.values, strict=False))  # empty if malformed
    numbers = tuple(said[index].number for index in sorted(said))
    return Reading(wanted, draw, judgement.outcome, numbers)


def _report(
    plan: Plan,
    store: Store,
    finished: tuple[Sequence[Sheet], int],
    reason: Reason,
    seconds: float,
) -> CheckReport:
    sheets, asked = finished
    gateway, provider = plan.backend.gateway, plan.backend.provider
    usage, measures = gateway.usage(), measure(sheets)
    return CheckReport(
        run_dir=str(store.folder),
        task=plan.config.task,
        provider=provider.name,
        model=provider.model,
        model_sha256=getattr(provider, "sha256", None),
        stopped=reason,
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
        f"with --run-dir {report.run_dir}{more} continues, and pays for no answer twice"
    )
