"""The most that a run can cost: every call at its longest, asked and billed as often as can be.

That is a maximum only where the answers don't decide how many calls an episode makes. Whether they
do is looked for, with answers of many kinds; where they do, or where there is too much to look
at, there is no maximum but the budget.
"""

from __future__ import annotations

import random
import string
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from orchestry.baselines import fixed, schedule
from orchestry.errors import OrchestryError, TaskError
from orchestry.prior import LONGEST_TOKEN, SHAPES
from orchestry.rollout import Rate, Rollout, task_boundary
from orchestry.search.beam import Candidate, Joint, Schedule
from orchestry.seeds import derive
from orchestry.services.gateway import MAX_CHARS
from orchestry.services.ledger import NANO, nano
from orchestry.session import Plan
from orchestry.types import Completion, Part, Policy, Request, Score, Trajectory, Tree

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
Course = tuple[tuple[str, ...], ...]
"""Who acted on the way to a leaf, stage by stage."""


@dataclass(slots=True)
class Courses:
    """The ways that episodes went, by first state."""

    by_state: defaultdict[Any, set[Course]] = field(default_factory=lambda: defaultdict(set))
    unknown: bool = False
    """Whether a play broke off or was left out, so that there may be other ways."""

    def add(self, tree: Tree[Any]) -> None:
        """Takes the way to every leaf of a played episode."""
        acted = {group.parent: group.agents for group in tree.groups}
        seen = self.by_state[tree.trajectories["0"].state]
        for leaf in tree.leaves:
            parts = leaf.split(".")
            seen.add(tuple(acted[".".join(parts[:end])] for end in range(1, len(parts))))

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

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [[self._answer(request, index) for index in range(n)] for request in requests]

    def _answer(self, request: Request, index: int) -> Completion:
        backend, attempts = self.plan.backend, self.plan.config.retry.attempts
        sample = request.model_copy(update={"sample_index": index})  # may lengthen the prompt
        bound = backend.provider.input_bound(sample)
        once = backend.prices.worst(request.model, bound, request.max_tokens, shared=True)
        self.nano_usd += nano(once) * attempts
        self.calls += 1
        size = min(request.max_tokens * LONGEST_TOKEN, 4 * MAX_CHARS)
        text = self.shape.format(f"{self.calls} ".ljust(size, "x"))  # no two answers are equal
        return Completion(text=text, model=request.model)


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

    def prune(self, pool: Sequence[Candidate], seed: int) -> list[str]:
        return self.schedule.prune(pool, seed)


def most(plan: Plan, courses: Courses) -> tuple[float, int]:
    """Dollars if every call of every episode takes its worst course, and the size of an episode.

    The size is in calls, those of long ways counted more, since their prompts are longer too.
    `courses` takes the ways that the episodes went: the dollars hold only if it stays fixed.
    """
    total = calls = 0
    for place, (episode, count) in enumerate(_occurrences(plan, courses).items()):
        worst, longest = max(_longest(plan, episode, shape, courses) for shape in SHAPES)
        if place < PROBED:
            _probe(plan, episode, courses)
        total += worst * count
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
            state = plan.task.reset(problem, _seed(plan, episode))
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


def _longest(plan: Plan, episode: int, shape: str, courses: Courses) -> tuple[int, int]:
    """Nano-dollars and calls of an episode at its longest.

    Nothing collapses, though a task may take all these answers for the same, and nothing ties: a
    stage without ties keeps the states from which the next one draws most.
    """
    policy, chosen = Longest(plan, shape), schedule_of(plan, episode)
    courses.add(play(plan, policy, _all_different, episode, Apart(chosen)))
    return policy.nano_usd, policy.calls


def _probe(plan: Plan, episode: int, courses: Courses) -> None:
    """Plays single chains of answers that a task may look for."""
    for number in range(len(CUES) + 1 + MIXED):
        try:
            courses.add(play(plan, Probe(number), _all_different, episode, fixed.schedule()))
        except TaskError:  # no end, or a cue that the task can't take: the real run would tell
            courses.unknown = True


async def _all_different(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
    return [simulated_score(place / len(nodes)) for place in range(1, len(nodes) + 1)]


def simulated_score(value: float) -> Score:
    """A score of one part."""
    return Score(parts=(Part(name="simulated", value=value),))


def schedule_of(plan: Plan, episode: int) -> Schedule:
    """The schedule that the real run would follow."""
    return schedule(plan.config.search, plan.task, plan.problem(episode))


def _seed(plan: Plan, episode: int) -> int:
    return derive(plan.config.seed, "episode", episode)


def play(plan: Plan, policy: Policy, rate: Rate, episode: int, schedule: Schedule) -> Tree[Any]:
    """One episode of the plan, with that policy in place of the provider."""
    rollout = Rollout(
        task=plan.task,
        team=plan.backend.team(plan.task),
        policy=policy,
        rate=rate,
        schedule=schedule,
    )
    return finish(rollout.play(plan.problem(episode), _seed(plan, episode)))


def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing, and so needs no event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise OrchestryError("a simulated episode waited for something: report this as a bug")
