"""One process's part of a run: plays the episodes that are not committed yet, in order.

Work is shared by runs and judge checks: workers, interruption, the first failure.

If the backend learns, episodes come in blocks with an update after each. All episodes of a block
are played with what was learned before it. If the backend overlaps, the update after a block is
made while the next block is played, which then can't use it yet.

A failure loses nothing that was paid for: calls in flight finish into the journal, finished
episodes are committed, and `orchestry resume` can continue.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from orchestry.core.errors import (
    BudgetExceeded,
    Interrupted,
    OrchestryError,
    StoreError,
    TaskFault,
    fault,
)
from orchestry.core.types import Problem, Tools
from orchestry.engine.manifest import Reason, summary_of, unspoken, write_manifest
from orchestry.engine.plan import Plan
from orchestry.engine.scores import Faults, Verdicts
from orchestry.models.ledger import Ledger
from orchestry.rollout.replay import give_credit
from orchestry.rollout.schedule import Schedule
from orchestry.rollout.tree import episode_record
from orchestry.store.collapse import Glance, collapses, glance
from orchestry.store.journal import Learned, Rated, last_words
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Store
from orchestry.store.trackers import open_trackers

_Play = tuple[int, Problem, Schedule]
"""An episode, its problem, and how it is searched."""


class Observer(Protocol):
    """Watches a run. Every method must be fast and must not raise."""

    def note(self, text: str) -> None:
        """A one-line note for the user."""
        ...

    def started(self, folder: Path, plan: Plan, done: int) -> None:
        """Everything is open; earlier processes committed `done` episodes."""
        ...

    def committed(self, record: EpisodeRecord) -> None:
        """An episode was committed."""
        ...


class Silent:
    """Nobody watches."""

    def note(self, text: str) -> None: ...

    def started(self, folder: Path, plan: Plan, done: int) -> None: ...

    def committed(self, record: EpisodeRecord) -> None: ...


class Work(ABC):
    """The work of one process: workers that start nothing new once one has failed."""

    faults: Faults | None = None
    """Handles states that the task can't score; None: they stop the work."""

    tools: Tools
    """The sandbox; set before `play`."""

    def __init__(self, plan: Plan, store: Store, note: Callable[[str], None], goes_on: str) -> None:
        """`goes_on` is the command that continues after an interrupt."""
        self.plan, self.store, self.note = plan, store, note
        self.failure: OrchestryError | None = None
        self._goes_on = goes_on
        self._asked_to_stop = False
        self._workers: list[asyncio.Task[None]] = []

    def begin(self, level: str) -> None:
        """Called when everything is open, with the sandbox's level."""
        self.note(f"sandbox level {level.partition(' (')[0]}")  # the manifest has all of it

    @abstractmethod
    async def play(self, rate: Verdicts) -> None:
        """Does all remaining work; the error that stops it is kept in `failure`."""

    @abstractmethod
    def sum_up(self, reason: Reason, seconds: float) -> None:
        """Writes the results, why the work ended, and after how many seconds."""

    async def run(self, work: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Runs the coroutines together, until each has ended or was cancelled."""
        async with asyncio.TaskGroup() as group:
            self._workers = [group.create_task(each) for each in work]

    def fail(self, error: Exception) -> None:
        """Keeps the first failure (a real one before a stop at the cap), and starts nothing new.

        At the cap, smaller calls may still fit; after any other failure new calls are refused.
        """
        told = error if isinstance(error, OrchestryError) else fault(error)
        if self.failure is None or isinstance(self.failure, BudgetExceeded):
            self.failure = told
        if not isinstance(told, BudgetExceeded):
            self.plan.backend.gateway.close_door(str(told))

    def interrupt(self) -> None:
        """First time: paid calls in flight, and calls of tools, may finish. Second time: they are
        cancelled."""
        if self._asked_to_stop:
            self._give_up()
            return
        self._asked_to_stop = True
        paid = self.plan.backend.must_finish
        calls = f"{paid} call{'s' * (paid != 1)} in flight"
        wait = f"{calls} may finish; press Ctrl-C again to give them up"
        self.note(f"stopping: {wait}" if paid else "stopping")
        self.fail(Interrupted(f"interrupted: {self._goes_on} continues it"))
        if not paid and not self.plan.backend.in_step:  # its threads stop by themselves
            self._give_up()

    def _give_up(self) -> None:
        for worker in self._workers:
            worker.cancel()


class Session(Work):
    """Plays a plan into a store."""

    rate: Verdicts

    def __init__(self, plan: Plan, store: Store, watch: Observer) -> None:
        super().__init__(plan, store, watch.note, f"`orchestry resume {store.folder}`")
        self.watch = watch
        self.faults = Faults(plan.task, store, watch.note)
        self._waiting: dict[int, EpisodeRecord] = {}
        self._next = 0
        self._turn = asyncio.Lock()

    def begin(self, level: str) -> None:
        """See Work: files, manifest and trackers."""
        plan, store = self.plan, self.store
        for name, text in plan.backend.files().items():
            store.write(name, text)
        write_manifest(store, plan, level)
        self.watch.started(store.folder, plan, len(store.episodes))
        super().begin(level)
        if store.lost:
            self.note(
                f"episodes.jsonl lacks {len(store.lost)} finished episodes: they are played "
                "again from the journal's answers"
            )
        store.mirrors += open_trackers(plan.config, store, plan.backend.every, self.note)
        config = plan.config.model_dump(mode="json", by_alias=True)
        self._collapses = collapses(config, store.events, self._glances(store.episodes))

    def sum_up(self, reason: Reason, seconds: float) -> None:
        """See Work: summary.json."""
        self.store.rewrite()
        summary = summary_of(self.plan, self.store, reason, seconds)
        self.store.write("summary.json", summary.model_dump_json(indent=2) + "\n")
        if why := unspoken(self.plan.config, summary.usage):
            self.note(why)

    async def play(self, rate: Verdicts) -> None:
        """See Work."""
        self.rate = rate
        self.plan.foresee(self._ledger, len(self.store.episodes))
        await self.run([self._evaluate()])
        await self._play_blocks()
        rate.sum_up()

    async def _play_blocks(self) -> None:
        backend, due = self.plan.backend, list[tuple[int, range]]()
        for number, block in enumerate(self._blocks(), start=1):
            await self._together(due, block)
            self._settle(block)
            if self.failure:
                return
            whole = len(block) == backend.every and number == backend.updates + 1
            due = [(number, block)] if whole else []
            if due and not backend.overlaps:
                await self._together(due)
                due = []
        if due:
            await self._together(due)

    def _blocks(self) -> Iterator[range]:
        """The episodes between two updates, all at once if there are none."""
        asked = self.plan.config.episodes
        size = self.plan.backend.every or asked
        return (range(first, min(first + size, asked)) for first in range(0, asked, size))

    async def _together(
        self, updates: Sequence[tuple[int, range]], block: range = range(0)
    ) -> None:
        """Makes these updates, by number and block, while the episodes of `block` are played."""
        before = [self.store.episodes[n] for n in sorted(self.store.episodes) if n < block.start]
        problems = self.plan.draw(block, before)
        ways = self.plan.backend.schedules(self.plan.task, problems, before)
        plays = zip(block, problems, ways, strict=True)
        queue = (play for play in plays if play[0] not in self.store.episodes)
        places = min(len(block), self.plan.episodes_in_flight)
        await self.run(
            [
                *(self._update(number, learned) for number, learned in updates),
                *(self._work(queue) for _ in range(places)),
            ]
        )

    async def _update(self, number: int, block: range) -> None:
        await self._learn(number, block)
        await self._evaluate()

    async def _learn(self, number: int, block: range) -> None:
        """One update of the backend, from the episodes of its block."""
        backend = self.plan.backend
        which = f"episodes {block[0]} to {block[-1]}" if len(block) > 1 else f"episode {block[0]}"
        self.watch.note(f"update {number}: learning from {which}")
        backend.gateway.pulse.doing = f"update {number}"
        try:
            episodes, said = self.store.episodes, self._said()
            rated = sorted({number for number, _ in said if number < block[0]} & episodes.keys())
            update = await backend.update(
                [episodes[number] for number in block if not episodes[number].failed],
                said,
                [episodes[n] for n in rated],
            )
            learned = Learned(update=number, state=dict(update.state), at=time.time())
            self.store.learned(learned)
            for name, text in update.files.items():
                self.store.write(name, text)
            new = self._collapses.learned(learned, self._glances(block))
            for note in (*update.notes, *new):
                self.watch.note(note)
        except Exception as error:
            self.fail(error)

    def _glances(self, numbers: Iterable[int]) -> dict[int, Glance]:
        found = ((number, self.store.episodes[number]) for number in numbers)
        return {number: glance(record) for number, record in found if not record.failed}

    def _said(self) -> dict[tuple[int, str], Rated]:
        """People's ratings of finished trajectories. An episode that was played again may hold
        other answers than those that were rated; then the rating does not count."""
        episodes = self.store.episodes
        found = last_words(self.store.events)
        known = {key: one for key, one in found.items() if one.episode in episodes}
        said = {key: one for key, one in known.items() if _still(episodes[one.episode], one)}
        if lost := len(known) - len(said):
            self.watch.note(
                f"{lost} of {len(known)} ratings are not learned from: their episodes were played "
                "again, with other answers"
            )
        return said

    async def _evaluate(self) -> None:
        """The team's reward on dev, when the backend says that an evaluation is due."""
        if self.failure:
            return
        try:
            found = await self.plan.backend.evaluate()
            if found is not None:
                self.store.evaluated(found.event)
                self.watch.note(found.note)
        except Exception as error:
            self.fail(error)

    async def _work(self, queue: Iterator[_Play]) -> None:
        for episode, problem, way in queue:
            if self.failure:
                return
            try:
                async with self._turn:  # one at a time, so that a stop waits for one pause at most
                    if not self.failure:
                        await self.plan.backend.gateway.keep_pace()
                async with self._claim(episode):
                    if self.failure:  # meanwhile
                        return
                    self._waiting[episode] = await self._episode(episode, problem, way)
                self._commit(self._in_order())
            except Exception as error:
                self.fail(error)
                return

    @property
    def _ledger(self) -> Ledger:
        return self.plan.backend.gateway.ledger

    def _claim(self, episode: int) -> AbstractAsyncContextManager[None]:
        """Waits until the remaining budget covers one more episode."""
        return nullcontext() if self.plan.backend.in_step else self._ledger.episode(episode)

    async def _episode(self, episode: int, problem: Problem, way: Schedule) -> EpisodeRecord:
        plan = self.plan
        rollout = plan.backend.rollout(plan.task, self.rate, way, episode)
        tree = await rollout.play(problem, plan.seed(episode))
        if not tree.leaves:
            return episode_record(tree, episode)
        if not (self.store.episodes or self._waiting):  # the first one to end
            self.rate.check(2)  # a single answer proves nothing
        credited = await give_credit(rollout, tree, plan.config.credit)
        return episode_record(tree, episode, credited.records, credited.calls)

    def _in_order(self) -> list[int]:
        """Commits finished episodes that have no unfinished one before them, so that files grow in
        order.

        A failed episode waits until a later call is answered, or all others are done.
        """
        ready = list[int]()
        while self._next in self.store.episodes or self._next in self._waiting:
            if self._next in self._waiting:
                if self._doubtful(self._next):
                    break
                ready.append(self._next)
            self._next += 1
        return ready

    def _doubtful(self, episode: int) -> bool:
        """Whether an episode failed perhaps because of a wrong setting; then the failure is not
        final."""
        return bool(self._waiting[episode].failed) and self.plan.backend.gateway.in_doubt

    def _settle(self, block: range) -> None:
        """At the end of a block, commits whole episodes even if an earlier one was cut off."""
        refused = None if self.failure else self.plan.backend.gateway.verdict()
        if refused is not None:
            self.fail(refused)
        try:
            whole = sorted(self._waiting)
            self._commit([n for n in whole if not (self.failure and self._doubtful(n))])
            if self.failure is None:
                self.rate.check(1)
                self._check_whole(block)
        except (StoreError, TaskFault) as error:
            self.fail(error)

    def _check_whole(self, block: range) -> None:
        """Raises TaskError if a task cancelled its own work, which would lose episodes silently."""
        if lost := [number for number in block if number not in self.store.episodes]:
            self.fail(
                OrchestryError(
                    f"{len(lost)} episodes of the block ended without a result (episode {lost[0]} "
                    "first): the task cancelled the work that it is part of; mend it, then "
                    f"`orchestry resume {self.store.folder} --accept-changes`"
                )
            )

    def _commit(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            record = self._waiting.pop(number)
            self.store.commit(record, time.time())
            self.watch.committed(record)


def _still(record: EpisodeRecord, said: Rated) -> bool:
    """Whether the record holds the answers that were rated."""
    there = any(node.id == said.node for node in record.nodes)
    return there and said.answers in ("", record.answers(said.node))
