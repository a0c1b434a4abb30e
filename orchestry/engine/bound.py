"""The most that a run can cost: every call at its longest, asked and billed as often as can be.

That is a maximum only where the answers don't decide how many calls an episode makes. Whether they
do is looked for, with answers of many kinds; where they do, or where there is too much to look
at, there is no maximum but the budget. Nor is there one where behaviours are learned, since they
lengthen the prompts.
"""

from __future__ import annotations

import random
import string
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import ceil, floor
from typing import Any, TypeVar

from orchestry.backends.simulated import simulated_score
from orchestry.core.errors import OrchestryError, TaskError
from orchestry.core.seeds import derive
from orchestry.core.types import (
    MAX_CHARS,
    ROOT,
    Completion,
    Group,
    Judge,
    NodeId,
    Policy,
    Problem,
    Rate,
    Request,
    Score,
    Siblings,
    Trajectory,
    Tree,
    Turn,
)
from orchestry.engine.plan import Plan
from orchestry.judge import prompt as rating
from orchestry.judge.judge import ListwiseJudge
from orchestry.models.prior import LONGEST_TOKEN, SHAPES
from orchestry.rollout.rollout import TOLD_CHARS, Rollout
from orchestry.rollout.schedule import Candidate, Chains, Joint, Schedule, schedule
from orchestry.rollout.tree import apply
from orchestry.store.summary import NANO, nano
from orchestry.task.guard import task_boundary

T = TypeVar("T")
LOOKED_AT = 1000
"""Episodes looked at one by one; of a longer run only how often each problem comes is counted."""
PROBED = 20
"""First states that are probed."""
MIXED = 12
"""Chains of mixed probing answers for each of them; each cue also has a chain of its own."""
CUES = (
    *("", "yes", "no", "YES", "NO", "done", "DONE", "stop", "STOP", "pass", "fail", "approved"),
    *("APPROVED", "LGTM", "revise", "REVISE", "reject", "continue", "0", "1", "{}", "[]"),
    string.printable,
)
"""Answers that a task may look for; probes also repeat the prompt, which may name the cue."""
ECHOED = 500
"""Characters repeated of each message: whole prompts would double with every turn."""
WIDE = "\U00010348"
"""A character of four bytes: texts are cut by characters and billed, at worst, by bytes."""
REASON = 1300
"""Bytes of the fault that a repair names, at most: 300 characters and the candidate's label."""
SHOWN = 8
"""Candidates of the prompts that are built; larger sibling sets are billed in proportion."""
Course = tuple[tuple[str, ...], ...]
"""Who acted on the way to a leaf, stage by stage."""


@dataclass(slots=True)
class Courses:
    """The ways that episodes went, by first state."""

    by_state: defaultdict[Any, set[Course]] = field(default_factory=lambda: defaultdict(set))
    unknown: bool = False
    """Whether a play broke off, was left out or met an answer that the task can't digest, so that
    there may be other ways."""

    def add(self, tree: Tree[Any]) -> None:
        """Takes the way to every leaf of a played episode."""
        acted = {group.parent: group.agents for group in tree.groups}
        self.unknown |= any(node.trajectory.failed for node in tree.nodes.values())
        seen = self.by_state[tree.root.trajectory.state]
        for leaf in tree.leaves:
            seen.add(tuple(acted[state] for state in leaf.id.path[:-1]))

    def longest(self, tree: Tree[Any]) -> Course:
        """The longest way from the state where the episode began."""
        return max(self.by_state[tree.root.trajectory.state], key=len)

    @property
    def fixed(self) -> bool:
        """Whether, as far as was seen, the answers decide nothing about who acts and how often."""
        return not self.unknown and all(len(seen) == 1 for seen in self.by_state.values())

    @property
    def stretch(self) -> int:
        """How many times longer the longest way from a state is than the shortest, rounded up."""
        lengths = [[len(course) for course in seen] for seen in self.by_state.values()]
        return max((-(-max(each) // max(1, min(each))) for each in lengths), default=1)


class Longest:
    """A policy whose every answer is as long and as dear as it can be, in one of SHAPES."""

    def __init__(self, plan: Plan, shape: str) -> None:
        self.plan, self.shape, self.nano_usd, self.calls = plan, shape, 0, 0
        self.dearest = 0
        """Nano-dollars of the dearest of the calls."""

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [[self._answer(request, index) for index in range(n)] for request in requests]

    def _answer(self, request: Request, index: int) -> Completion:
        attempts = self.plan.config.retry.attempts
        provider, prices = self.plan.backend.asked(request)
        sample = request.model_copy(update={"sample_index": index})  # may lengthen the prompt
        bound = provider.input_bound(sample)
        once = prices.worst(request.model, bound, request.max_tokens, shared=True)
        self.nano_usd += nano(once) * attempts
        self.dearest = max(self.dearest, nano(once) * attempts)
        self.calls += 1
        size = min(request.max_tokens * LONGEST_TOKEN, 4 * MAX_CHARS)
        text = self.shape.format(f"{self.calls} ".ljust(size, "x"))  # no two answers are equal
        return Completion(text=text, model=request.model)


class Rambling:
    """A judge's policy whose verdicts are as long and as dear as they can be, and malformed.

    The sibling set has `size` members; of a larger one `shown` are in the prompts that it sees.
    """

    def __init__(self, plan: Plan, size: int, shown: int) -> None:
        self.plan, self.factor, self.nano_usd = plan, size / shown, 0
        self.most = rating.limit(size, plan.config.judge)

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [[self._answer(request) for _ in range(n)] for request in requests]

    def _answer(self, request: Request) -> Completion:
        bench, attempts = self.plan.backend.bench, self.plan.config.retry.attempts
        bound = ceil((bench.provider.input_bound(request) + REASON) * self.factor)
        once = bench.prices.worst(request.model, bound, self.most, shared=False)
        self.nano_usd += nano(once) * attempts
        text = wide(request.max_tokens, self.plan.config.judge.max_chars)
        return Completion(text=text, model=request.model)


def wide(tokens: int, chars: int) -> str:
    """The text of most bytes that so many tokens can make, up to where it is cut."""
    return WIDE * min(-(-tokens * LONGEST_TOKEN // len(WIDE.encode())), chars + 1)


class Probe:
    """A policy that answers with one cue throughout, or with cues drawn anew for each call."""

    def __init__(self, number: int) -> None:
        self.number, self.rng = number, random.Random(derive("probe", number))

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [[self._answer(request) for _ in range(n)] for request in requests]

    def _answer(self, request: Request) -> Completion:
        echo = "\n".join(message.content[:ECHOED] for message in request.messages)
        cues = (*CUES, echo)
        text = cues[self.number] if self.number < len(cues) else self.rng.choice(cues)
        return Completion(text=text, model=request.model)


@dataclass(frozen=True, slots=True)
class Apart:
    """A schedule that keeps equal siblings apart."""

    schedule: Schedule
    collapse: bool = False

    @property
    def joint(self) -> Joint:
        return self.schedule.joint

    @property
    def breadth(self) -> int:
        return self.schedule.breadth

    def samples(self, stage: int, pool: int) -> int:
        return self.schedule.samples(stage, pool)

    def prune(self, pool: Sequence[Candidate], seed: int) -> list[NodeId]:
        return self.schedule.prune(pool, seed)


def most(plan: Plan, courses: Courses) -> tuple[float, int]:
    """Dollars if every call of every episode takes its worst course, and the size of an episode.

    The size is in calls of the search, those of long ways counted more, since their prompts are
    longer too. `courses` takes the ways that the episodes went: the dollars hold only if it stays
    fixed, and nothing is learned.
    """
    total = calls = 0
    judged: dict[tuple[Course, Schedule], int] = {}
    for place, (episode, count) in enumerate(_occurrences(plan, courses).items()):
        worst, longest, course = max(_longest(plan, episode, shape, courses) for shape in SHAPES)
        if place < PROBED:
            _probe(plan, episode, courses)
        way = course, schedule_of(plan, episode)
        if way not in judged:
            judged[way] = _judging(plan, *way)
        total += (worst + judged[way]) * count
        calls = max(calls, longest)
    return total / NANO, calls * courses.stretch**2


def _occurrences(plan: Plan, courses: Courses) -> Mapping[int, int]:
    """How many episodes begin in the same state as the episode that stands for them.

    Problems come in another order each time round, so past LOOKED_AT episodes counting the
    problems is enough, unless their first states depend on the seed too.
    """
    episodes, size = plan.config.episodes, len(plan.problems)
    first: dict[Any, int] = {}
    stands: defaultdict[str, set[int]] = defaultdict(set)
    counts: Counter[int] = Counter()
    for episode in range(min(episodes, LOOKED_AT)):
        problem = plan.problem(episode)
        with task_boundary(plan.task, "reset", problem):
            state = plan.task.reset(problem, seed_of(plan, episode))
            stand = first.setdefault(state, episode)
        stands[problem.id].add(stand)
        counts[stand] += 1
    if episodes <= LOOKED_AT:
        return counts
    if size > LOOKED_AT // 2 or any(len(each) > 1 for each in stands.values()):
        courses.unknown = True
        return {0: episodes}
    rounds, rest = divmod(episodes, size)
    counts = Counter({stand: rounds for each in stands.values() for stand in each})
    counts.update(min(stands[plan.problem(episodes - 1 - k).id]) for k in range(rest))
    return counts


def _longest(plan: Plan, episode: int, shape: str, courses: Courses) -> tuple[int, int, Course]:
    """Nano-dollars, calls of the search and the way of an episode at its longest, replays included.

    Nothing collapses, though a task may take all these answers for the same, and nothing ties: a
    stage without ties keeps the states from which the next one draws most. Replays ask the same
    agents in states of the same kind, so that none of their calls is dearer than all of these.
    """
    policy, chosen = Longest(plan, shape), schedule_of(plan, episode)
    tree = play(plan, policy, _all_different, episode, Apart(chosen))
    courses.add(tree)
    credit = plan.config.credit
    share = (credit.share or 0.0) if credit.method == "replay" else 0.0
    replayed = floor(share * policy.calls) * policy.dearest
    return policy.nano_usd + replayed, policy.calls, courses.longest(tree)


def _judging(plan: Plan, course: Course, schedule: Schedule) -> int:
    """Nano-dollars of the verdicts of an episode on that way, each malformed and repaired."""
    judge = plan.config.judge
    if not plan.backend.judges:
        return 0
    asked = len(course) - (judge.when != "always")  # which asks nothing once the work is over
    most = judge.max_chars + 1
    problem = max(plan.problems, key=lambda problem: len(problem.prompt[:most].encode()))
    return sum(
        max(
            (
                sets * _verdict(plan, problem, course[: stage + 1], size)
                for size, sets in _families(schedule, stage, len(course[stage])).items()
            ),
            default=0,
        )
        for stage in range(asked)
    )


def _families(schedule: Schedule, stage: int, agents: int) -> dict[int, int]:
    """Most sibling sets in a stage, by how many siblings they have."""
    most: dict[int, int] = {}
    for pool in range(1, schedule.breadth + 1 if stage else 2):
        samples = schedule.samples(stage, pool)
        size = samples**agents if schedule.joint == "cross" else samples
        if size > 1:
            most[size] = max(most.get(size, 0), pool)
    return most


def _verdict(plan: Plan, problem: Problem, course: Course, size: int) -> int:
    """Nano-dollars of the verdict on siblings at the end of that way."""
    shown = min(size, SHOWN)
    policy, judge = Rambling(plan, size, shown), plan.config.judge
    always = judge.model_copy(update={"when": "always"})
    asked = ListwiseJudge(
        policy,
        plan.backend.bench.provider.model,
        always,
        plan.task.agents,
        temperature=judge.temperature,
    )
    finish(asked.values(_widest(plan, problem, course, shown)))
    return policy.nano_usd


def _widest(plan: Plan, problem: Problem, course: Course, size: int) -> Siblings[Any]:
    """Siblings whose every text is as long as the judge is shown, or as answers can be."""
    most, team = plan.config.judge.max_chars, plan.backend.team(plan.task)

    def moves(agents: Sequence[str]) -> list[Turn]:
        texts = [(agent, wide(team[agent].max_tokens, most)) for agent in agents]
        return [
            Turn(agent=a, messages=(), completion=Completion(text=t, model="")) for a, t in texts
        ]

    *before, acting = course
    parent = Trajectory(ROOT, problem, 0, None, turns=tuple(moves([*chain(*before)])))
    said = Score(parts=(), feedback=WIDE * (most + 1))
    children = [replace(parent.extend(i, None, moves(acting)), score=said) for i in range(size)]
    return Siblings(parent, acting, tuple(children), ended=frozenset())


def _probe(plan: Plan, episode: int, courses: Courses) -> None:
    """Plays single chains of answers that a task may look for."""
    for number in range(len(CUES) + 1 + MIXED):
        try:
            courses.add(play(plan, Probe(number), _all_different, episode, Chains(1)))
        except TaskError:  # no end, or a cue that the task can't take: the real run would tell
            courses.unknown = True


async def _all_different(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
    """Scores whose feedback is as long as any that agents may be told."""
    scores = [simulated_score(place / len(nodes)) for place in range(1, len(nodes) + 1)]
    return [score.model_copy(update={"feedback": WIDE * TOLD_CHARS}) for score in scores]


def schedule_of(plan: Plan, episode: int) -> Schedule:
    """The schedule that the real run would follow."""
    return schedule(plan.config.search, plan.task, plan.problem(episode))


def seed_of(plan: Plan, episode: int) -> int:
    """The seed that the real run would give the episode."""
    return derive(plan.config.seed, "episode", episode)


class InTurn(Rollout[Any]):
    """A rollout that needs no event loop: its judge is asked about one sibling set at a time."""

    async def _judge(self, tree: Tree[Any], groups: Sequence[Group], judge: Judge) -> None:
        for group in groups:
            family = self._siblings(tree, group)
            if len(family.children) > 1 and (found := await judge.values(family)) is not None:
                apply(tree, family, found)


def play(plan: Plan, policy: Policy, rate: Rate, episode: int, schedule: Schedule) -> Tree[Any]:
    """One episode of the plan, with that policy in place of the provider, and without a judge."""
    rollout = rollout_of(plan, policy, rate, schedule)
    return finish(rollout.play(plan.problem(episode), seed_of(plan, episode)))


def rollout_of(
    plan: Plan,
    policy: Policy,
    rate: Rate,
    schedule: Schedule,
    judge: Judge | None = None,
    purpose: str = "act",
) -> Rollout[Any]:
    """The rollout that the real run would take, with that policy in place of the provider."""
    return InTurn(
        task=plan.task,
        team=plan.backend.team(plan.task),
        policy=policy,
        rate=rate,
        schedule=schedule,
        judge=judge,
        purpose=purpose,
    )


def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing, and so needs no event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise OrchestryError("a simulated episode waited for something: report this as a bug")
