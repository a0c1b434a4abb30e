"""Variants of the local learner beside the plain one, on games small enough for many seeds.

Rollout, group sizes, curricula, replays, trees, advantages and the batch are the real ones. Only
the policy is small: a table of logits instead of a model, so that its expected reward is computed
exactly, and Adam steps of a fixed size. Each variant learns until that reward reaches a threshold;
the figures are updates, and all samples drawn until then (replays included), over the plain
learner's of the same seed. An interval is a 95 % bootstrap over seeds.

`locks` is a bank of 30 problems of grades 1 to 8. Two agents in turn choose one of four keys for
each of a problem's locks, one lock per grade, and the reward is 1 if all fit. Locks recur in other
problems, so what is learned on easy ones helps with hard ones, which no chance solves at first.
`late` are the games of benchmarks/quality/credit.py, scored at their end: four agents at once, or
three in four moves.

    python -m benchmarks.quality.variants [--seeds N] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, ClassVar

from benchmarks import page
from benchmarks.quality.games import Moves, Play, named
from benchmarks.quality.games import problem as game_problem
from orchestry import AgentSpec, BaseTask, Problem, Score, Split, Tools
from orchestry.backends.local.batch import Batch, Grouping, gather
from orchestry.backends.local.credit import Counterfactuals, counterfactuals
from orchestry.backends.local.groups import group_sizes
from orchestry.backends.local.magrpo import Baseline
from orchestry.backends.local.values import by_tree, rated
from orchestry.core.seeds import derive, shuffled
from orchestry.core.types import Completion, Limits, Member, NodeId, Request, Tokens, Tree
from orchestry.engine.curriculum import by_grade, by_success
from orchestry.report.stats import Interval, interval
from orchestry.report.text import table
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains, Schedule, branching
from orchestry.rollout.tree import episode_record
from orchestry.sandbox import open_sandbox
from orchestry.store.records import EpisodeRecord

GROUP, EVERY = 4, 8
RATE, CRITIC_RATE = 0.3, 0.3
MOST = 250
"""Updates after which a run ends without having reached its threshold."""
LOCKS, KEYS, EACH = 8, 4, 5
GRADES = (1, 2, 3, 4, 6, 8)
RATE_TOOLS = Tools(sandbox=open_sandbox(Limits()))


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs from the plain learner."""

    name: str
    curriculum: str = "none"
    auto: bool = False
    tree: int | None = None
    """Samples in every state."""
    replay: bool = False
    baseline: Baseline = "mean"
    grouping: Grouping = "turn"
    critic: bool = False


PLAIN = Variant("plain: `baseline=mean`, 4 chains")
ANYWHERE = (
    PLAIN,
    Variant("`baseline=leave_one_out`", baseline="leave_one_out"),
    Variant("`credit=replay`", replay=True),
    Variant("`baseline=critic`", critic=True),
)
IN_TURN = (
    Variant("`grouping=history`, 4 chains", grouping="history"),
    Variant("`branch=tree`, `grouping=history`, 2 samples", tree=2, grouping="history"),
    Variant("`branch=tree`, `grouping=turn`, 2 samples", tree=2),
)
OF_A_BANK = (
    Variant("`group_size=auto`", auto=True),
    Variant("`curriculum=grade`", curriculum="grade"),
    Variant("`curriculum=success`", curriculum="success"),
    Variant("`group_size=auto`, `curriculum=success`", curriculum="success", auto=True),
)


# --- the games ------------------------------------------------------------------------------------


class Locks(BaseTask[Moves]):
    """See the module; a problem's data name its locks and the keys that fit."""

    name: ClassVar[str] = "locks"
    agents: ClassVar[tuple[AgentSpec, ...]] = tuple(AgentSpec(role=role) for role in "ab")

    def problems(self, split: Split) -> Sequence[Problem]:
        return bank(0)

    def reset(self, problem: Problem, seed: int) -> Moves:
        return Moves(problem)

    def to_act(self, state: Moves) -> tuple[str, ...]:
        done = len(state.actions)
        return () if done == len(state.problem.data["locks"]) else ("ab"[done % 2],)

    def observe(self, state: Moves, agent: str) -> str:
        """The lock at hand decides the choice; the rest is history."""
        lock = state.problem.data["locks"][len(state.actions)]
        return f"{lock}|{state.problem.id}|{' '.join(map(str, state.actions))}"

    def step(self, state: Moves, actions: Mapping[str, str]) -> Moves:
        return Moves(state.problem, (*state.actions, *(int(key or 0) for key in actions.values())))

    async def evaluate(self, state: Moves, tools: Tools) -> Score:
        return self.score(quality=float(list(state.actions) == state.problem.data["fits"]))


def bank(seed: int) -> list[Problem]:
    """EACH problems of every grade, one lock per grade."""
    rng = random.Random(derive(seed, "locks"))
    fits = {(agent, lock): rng.randrange(KEYS) for agent in "ab" for lock in range(LOCKS)}
    found = list[Problem]()
    for grade in GRADES:
        for number in range(EACH):
            locks = rng.sample(range(LOCKS), grade)
            right = [fits["ab"[place % 2], lock] for place, lock in enumerate(locks)]
            data = {"grade": grade, "locks": locks, "fits": right}
            found.append(Problem(id=f"{grade}-{number}", prompt="", data=data))
    return found


class Policy:
    """A table of logits; each answer is drawn by the request's seed."""

    def __init__(self, start: Mapping[str, Sequence[float]]) -> None:
        self.logits: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * KEYS)
        self.logits |= {key: list(map(math.log, chances)) for key, chances in start.items()}
        self.calls = self.steps = 0
        self._moments: dict[str, list[list[float]]] = {}

    def chances(self, key: str) -> list[float]:
        weights = [math.exp(logit - max(self.logits[key])) for logit in self.logits[key]]
        return [weight / sum(weights) for weight in weights]

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy of the engine."""
        self.calls += len(requests) * n
        return [[self._draw(request, j) for j in range(n)] for request in requests]

    def _draw(self, request: Request, index: int) -> Completion:
        seen = f"{request.agent}|{request.messages[-1].content}"
        chances = self.chances(key_of(seen))
        (action,) = random.Random(derive(request.seed, index)).choices(range(len(chances)), chances)
        tokens = Tokens(
            prompt_ids=tuple(map(ord, seen)), ids=(action,), logprobs=(math.log(chances[action]),)
        )
        return Completion(text=str(action), model="table", tokens=tokens)

    def learn(self, batch: Batch) -> None:
        """One Adam step along the gradient of equation 2."""
        gradient: dict[str, list[float]] = {}
        for one in batch.samples:
            key = key_of("".join(map(chr, one.prompt_ids)))
            row = gradient.setdefault(key, [0.0] * len(self.logits[key]))
            for action, chance in enumerate(self.chances(key)):
                own = (action == one.ids[0]) - chance
                row[action] += one.advantage * own / batch.actions[one.agent]
        self.steps += 1
        for key in self._moments.keys() | gradient.keys():
            self._step(key, gradient.get(key, [0.0] * len(self.logits[key])))

    def _step(self, key: str, row: Sequence[float]) -> None:
        first, second = self._moments.setdefault(key, [[0.0] * len(row), [0.0] * len(row)])
        for action, slope in enumerate(row):
            first[action] += 0.1 * (slope - first[action])
            second[action] += 0.001 * (slope * slope - second[action])
            mean = first[action] / (1 - 0.9**self.steps)
            spread = math.sqrt(second[action] / (1 - 0.999**self.steps))
            self.logits[key][action] += RATE * mean / (spread + 1e-8)


class Critic:
    """A table of values by history; a model's would also learn from histories that are alike."""

    def __init__(self) -> None:
        self._values: defaultdict[tuple[int, ...], float] = defaultdict(float)

    def values(self, trees: Sequence[Tree[Any]]) -> list[dict[NodeId, float]]:
        """Of each tree's states, before they are learned from."""
        states = rated(trees, "final", 1.0)
        found = by_tree(states, [self._values[one.ids] for one in states], len(trees))
        for one in states:
            self._values[one.ids] += CRITIC_RATE * (one.target - self._values[one.ids])
        return found


def key_of(seen: str) -> str:
    """The row of the table that answers: an agent's lock, or a move of a game after the last."""
    agent, first, *rest = seen.split("|")
    if rest[1:]:
        return f"{agent} {first}"
    done = rest[0].split()
    return f"{agent} {len(done)} {done[-1] if done else 0}"


@dataclass(frozen=True, slots=True)
class Game:
    """A task with its problems, where its policy starts, and what counts as learned."""

    task: BaseTask[Any]
    problems: Sequence[Problem]
    start: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def threshold(self) -> float:
        """The expected reward that a policy must reach."""
        if isinstance(self.task, Locks):
            return 0.8
        scores = named(self.problems[0].prompt).scores.values()
        first = self.value(Policy(self.start))
        return first + 0.8 * (max(scores) - first)

    def value(self, policy: Policy) -> float:
        """The expected reward of a trajectory, exactly, over all problems."""
        if isinstance(self.task, Locks):
            return fmean(self._opened(policy, one) for one in self.problems)
        return fmean(self._reward(policy, self.task.reset(one, 0)) for one in self.problems)

    def _opened(self, policy: Policy, problem: Problem) -> float:
        """The chance that all keys fit."""
        locks, fits = problem.data["locks"], problem.data["fits"]
        keys = [f"{'ab'[place % 2]} {lock}" for place, lock in enumerate(locks)]
        return math.prod(policy.chances(key)[fit] for key, fit in zip(keys, fits, strict=True))

    def _reward(self, policy: Policy, state: Moves) -> float:
        acting = self.task.to_act(state)
        if not acting:
            return named(state.problem.prompt).scores[state.actions]
        # Those who act at once see the same, so that one may be taken after the other.
        keys = [key_of(f"{agent}|{self.task.observe(state, agent)}") for agent in acting]
        joint = [(1.0, tuple[int, ...]())]
        for key in keys:
            chances = policy.chances(key)
            joint = [(p * q, (*done, a)) for p, done in joint for a, q in enumerate(chances)]
        return sum(
            p * self._reward(policy, Moves(state.problem, (*state.actions, *moves)))
            for p, moves in joint
        )


def locks(seed: int) -> Game:
    return Game(Locks(), bank(seed))


def late(seed: int, joint: bool) -> Game:
    one = game_problem(f"late {seed} {int(joint)}")
    game = named(one.prompt)
    start = {
        f"{role} {0 if joint else move} {last}": game.chances[move][last]
        for move, role in enumerate(game.roles)
        for last in range(len(game.chances[move]))
    }
    return Game(Play(), [one], start)


# --- the learner ----------------------------------------------------------------------------------


async def learned(game: Game, variant: Variant, seed: int) -> tuple[int, int, bool]:
    """Updates and samples until the threshold, and whether it was reached."""
    policy, critic = Policy(game.start), Critic()
    goal, done = game.threshold, list[EpisodeRecord]()
    for update in range(MOST):
        if game.value(policy) >= goal:
            return update, policy.calls, True
        block = range(update * EVERY, (update + 1) * EVERY)
        problems = drawn(game, variant, block, done, seed)
        ways = schedules(game, variant, problems, done)
        trees, credits = list[Tree[Any]](), list[Counterfactuals]()
        for episode, problem, way in zip(block, problems, ways, strict=True):
            rollout = _rollout(game, policy, way)
            trees.append(await rollout.play(problem, derive(seed, "episode", episode)))
            if variant.replay:
                credits.append(await counterfactuals(rollout, trees[-1]))
            done.append(episode_record(trees[-1], episode))
        policy.learn(
            gather(
                trees,
                rewards="final",
                grouping=variant.grouping,
                baseline=variant.baseline,
                credits=credits if variant.replay else None,
                shares=variant.auto or variant.tree is not None,
                like=GROUP if variant.auto else None,
                values=critic.values(trees) if variant.critic else None,
            )
        )
    return MOST, policy.calls, game.value(policy) >= goal


def _rollout(game: Game, policy: Policy, way: Schedule) -> Rollout[Any]:
    team = {spec.role: Member(spec.role, "", "table", 1) for spec in game.task.agents}
    return Rollout(game.task, team, policy, task_rater(game.task, RATE_TOOLS), way)


def drawn(
    game: Game, variant: Variant, block: range, done: Sequence[EpisodeRecord], seed: int
) -> list[Problem]:
    """The problems of a block, as Plan.draw has them."""
    if variant.curriculum == "success":
        return by_success(game.problems, block, done, seed)
    found, count = list[Problem](), len(game.problems)
    for episode in block:
        epoch, place = divmod(episode, count)
        if variant.curriculum == "grade" and not epoch:
            found.append(by_grade(game.problems, seed)[place])
        else:
            found.append(game.problems[shuffled(count, seed, "epoch", epoch)[place]])
    return found


def schedules(
    game: Game, variant: Variant, problems: Sequence[Problem], done: Sequence[EpisodeRecord]
) -> list[Schedule]:
    if variant.auto:
        return [Chains(n) for n in group_sizes(problems, done, GROUP)]
    if variant.tree is not None:
        return [branching(game.task, problem, variant.tree) for problem in problems]
    return [Chains(GROUP) for _ in problems]


# --- the section ----------------------------------------------------------------------------------


async def compare(games: Sequence[Game], variants: Sequence[Variant]) -> str:
    """A row per variant; the first is what the others are held against."""
    runs = {
        one.name: [await learned(game, one, seed) for seed, game in enumerate(games)]
        for one in variants
    }
    plain = runs[variants[0].name]
    ratios = {name: _beside(found, plain) for name, found in runs.items()}
    rows = (
        (
            name,
            *_figures(found),
            *(["", ""] if found is plain else map(_said, ratios[name])),
            str(sum(not ok for *_, ok in found)),
        )
        for name, found in runs.items()
    )
    header = ("learner", "updates", "samples", "updates over plain", "samples over plain", "missed")
    fewer = [name for name, (_, samples) in ratios.items() if samples.high < 0.0]
    more = [name for name, (_, samples) in ratios.items() if samples.low > 0.0]
    verdict = f"Fewer samples than plain: {_listed(fewer)}. More: {_listed(more)}."
    return f"{table(header, rows)}\n\n{verdict}"


def _figures(found: Sequence[tuple[int, int, bool]]) -> tuple[str, str]:
    updates, samples = (median(one[place] for one in found) for place in (0, 1))
    return f"{updates:.0f}", f"{samples:,.0f}"


def _beside(
    found: Sequence[tuple[int, int, bool]], plain: Sequence[tuple[int, int, bool]]
) -> list[Interval]:
    """The mean log of the ratio to the plain learner: of updates, and of samples."""
    pairs = list(zip(found, plain, strict=True))
    return [interval([math.log(a[place] / b[place]) for a, b in pairs]) for place in (0, 1)]


def _said(ratio: Interval) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*map(math.exp, (ratio.mean, ratio.low, ratio.high)))


def _listed(names: Sequence[str]) -> str:
    return "; ".join(names) or "none"


async def section(seeds: int) -> str:
    """The section's body."""
    began = time.process_time()
    bank_of = [locks(seed) for seed in range(seeds)]
    at_once, in_order = ([late(seed, joint) for seed in range(seeds)] for joint in (True, False))
    tables = {
        "Locks, to an expected reward of 0.8:": (bank_of, (*ANYWHERE, *OF_A_BANK)),
        "Games of four agents at once, to 0.8 of the way from the start to the best play:": (
            at_once,
            ANYWHERE,
        ),
        "Games of three agents in four moves, to the same:": (in_order, (*ANYWHERE, *IN_TURN)),
    }
    parts = [
        f"{seeds} seeds; {EVERY} episodes per update, {GROUP} chains each unless told otherwise "
        "(a tree of 2 samples in every state of 4 stages has 30 moves, 4 chains have 16; the trees "
        "of the bank's 8 stages would be refused). A sample is a move. Updates and samples are "
        "medians; ratios are geometric means over seeds, with intervals; below 1 is better than "
        f"plain. Missed: seeds that did not get there in {MOST} updates, which "
        "count as if they had."
    ]
    for heading, (games, variants) in tables.items():
        parts += [heading, await compare(games, variants)]
    return "\n\n".join([*parts, f"{time.process_time() - began:.0f} s of CPU."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    body = asyncio.run(section(args.seeds))
    print(body)
    if args.write:
        page.write("variants", "python -m benchmarks.quality.variants --write", body)


if __name__ == "__main__":
    main()
