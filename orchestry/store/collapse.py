"""Whether a run collapses, by what its updates so far show: at most one sentence per kind.

It is a fold over the updates, so a resume and a report find the same at the same updates.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf, sqrt
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from orchestry.store.journal import Event, Learned
from orchestry.store.progress import Row
from orchestry.store.records import EpisodeRecord

FAINTEST = 1e-12
"""An advantage up to this size counts as zero (rounding)."""
FLAT, HALF, BEST = (3, 24), (5, 40), (10, 80)
"""Windows of the three comparisons: at least so many updates, and so many episodes."""
SURE = 5.0
"""A fall counts from so many standard errors on. A run has hundreds of windows, and the best one is
the luckiest: at 5, a reward that only fluctuates is called a collapse in under 2 % of runs of 500
updates, and a fall by two standard deviations of an update's mean is mostly told within a window
(tests/store/test_collapse.py)."""
FALL = 0.1
"""A smaller fall, as a share of the best reward, is not told."""
_GAMES = 4
"""As how many episodes a batch of backend ppo counts: it has one mean, of many games."""
_95 = NormalDist().inv_cdf(0.975)
_HALVED = {
    "entropy": ("entropy has halved", "{:.3g} nats"),
    "length": ("answers are half as long", "{:.3g} tokens"),
    "variety": ("samples of one prompt have become alike", "{:.0%} differ"),
}
"""By figure: what is said, and how its values are."""
_PAID = "see which part of the reward pays for short answers (rewards.csv; weights.PART weighs it)"
_START = "easier problems, a higher sampling.max_tokens=?"
_SOLVED = "harder problems: these are solved"
_ADVICE: Mapping[str, Mapping[str, str]] = {
    "local": {
        "entropy": "resume with a lower learn.learning_rate=?, or begin again from an earlier "
        "checkpoint (learn.from) with a higher sampling.temperature=? or, with LoRA, learn.kl=?",
        "length": f"{_PAID}, and begin again from an earlier checkpoint (learn.from), with LoRA at "
        "a higher learn.kl=?",
        "reward": "resume with a lower learn.learning_rate=?, or begin again with it from a "
        "checkpoint of its best time (learn.from; learn.keep_every and learn.evaluate_every keep "
        "some)",
        "unsolved": f"{_START}, or a start that can do some of them: agents.ROLE.examples, or "
        "`orchestry distil` and learn.from",
        "undecided": "a higher sampling.temperature=? or learn.group_size=?, curriculum=success, "
        "or a reward with more steps between 0 and 1",
        "solved": _SOLVED,
    },
    "api": {
        "length": f"{_PAID}, and which behaviours ask for them (`orchestry behaviors diff RUN`)",
        "variety": "a higher sampling.temperature=? (Claude takes none), or fewer behaviours per "
        "prompt, by a lower behaviors.max_per_agent=?",
        "reward": "see what entered the prompts since (`orchestry behaviors list RUN`), and begin "
        "again with a stricter test: a lower behaviors.alpha=?, or a higher behaviors.share",
        "unsolved": f"{_START}, agents.ROLE.examples, or a stronger provider.model",
        "undecided": "a higher search.k_samples=? or sampling.temperature=?, or judge.enabled=true,"
        " which breaks ties",
        "solved": _SOLVED,
    },
    "ppo": {
        "entropy": "begin again with a higher ppo.entropy=? or a lower ppo.learning_rate=?",
        "reward": "begin again from a checkpoint of its best time (ppo.from; ppo.keep keeps more) "
        "with a lower ppo.learning_rate=? or ppo.clip=?",
    },
}
"""What helps, by backend and kind; `=?` stands for the run's own setting."""


def advice(config: Mapping[str, Any], kind: str) -> str:
    """What helps, with the run's settings as far as `config` has them."""

    def now(found: re.Match[str]) -> str:
        section, _, key = found[1].rpartition(".")
        value = config.get(section, {}).get(key)
        return found[1] if value is None else f"{found[1]} (now {value:g})"

    return re.sub(r"([a-z_.]+)=\?", now, _ADVICE[str(config["backend"])][kind])


def flat_kind(reward: float) -> str:
    """Which advice fits where all samples earn the same."""
    return "unsolved" if reward <= 0.05 else "solved" if reward >= 0.95 else "undecided"


class Glance(NamedTuple):
    """What is kept of an episode."""

    reward: float
    flat: bool | None
    """Whether the samples of each group earned the same; None: none were compared."""
    sums: Mapping[tuple[str, str], tuple[float, float]]
    """By figure and agent: a sum, and over how many."""


def glance(record: EpisodeRecord) -> Glance:
    """Of a finished episode: with tokens per answer, and how many samples of a state differ from
    those before them."""
    sums = defaultdict[tuple[str, str], tuple[float, float]](lambda: (0.0, 0.0))

    def add(figure: str, agent: str, part: float, of: float) -> None:
        before = sums[figure, agent]
        sums[figure, agent] = before[0] + part, before[1] + of

    said = {node.id: tuple(one.completion.told for one in node.turns) for node in record.nodes}
    for turn in (turn for node in record.nodes for turn in node.turns):
        add("length", turn.agent, turn.completion.output_tokens, 1)
    compared = [group for group in record.groups if len(group.children) > 1]
    for group in compared:
        distinct = {said[child] for child in group.children}
        add("variety", " + ".join(group.agents), len(distinct) - 1, len(group.children) - 1)
    flat = all(abs(one) <= FAINTEST for group in compared for one in group.advantages)
    return Glance(record.mean_reward, flat if compared else None, dict(sums))


class _Span(NamedTuple):
    """The rewards of some updates in a row."""

    mean: float
    variance: float
    of: int
    """How many."""
    end: int
    """The last update, or step."""


class Collapses:
    """The kinds of collapse that a run has shown so far."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config, self._backend = config, str(config.get("backend"))
        section = {"local": "learn", "api": "behaviors"}.get(self._backend, "")
        self._every = int(config.get(section, {}).get("every", _GAMES))
        self._words = ("reward", "updates", "update")
        if self._backend == "ppo":
            self._words = ("return", "batches", "step")
        self.told = dict[str, str]()
        """The sentence of each kind, as it was when it first held."""
        self.holding = set[str]()
        """Those that hold after the last update."""
        self._series = defaultdict[tuple[str, str], list[float]](list)
        self._flat = list[bool]()
        self._ends = [0]
        self._sums = [(0, 0.0, 0.0)]
        """Of all rewards up to each update: how many, their sum, and that of their squares."""
        self._best = _Span(-inf, 0.0, 0, 0)

    def learned(self, event: Learned, glances: Mapping[int, Glance]) -> list[str]:
        """New sentences after an update. `glances`: at its episodes, by number."""
        end, state = event.update * self._every, event.state
        block = [glances[n] for n in range(end - self._every, end) if n in glances]
        compared = [one.flat for one in block if one.flat is not None]
        flat = bool(compared) and all(compared)
        if "samples" in state:  # of weights, which know what an action earned
            flat = not state["samples"] or (not state.get("skipped") and state.get("flat") == 1.0)
        drawn = (state.get("by_agent") or {}).items()
        figures = {("entropy", who): one["entropy"] for who, one in drawn if "entropy" in one}
        for key in dict.fromkeys(key for one in block for key in one.sums):
            parts = [one.sums[key] for one in block if key in one.sums]
            figures[key] = sum(part for part, _ in parts) / sum(of for _, of in parts)
        return self._add(event.update, [one.reward for one in block], figures, flat=flat)

    def batch(self, row: Row) -> list[str]:
        """New sentences after a batch of backend ppo."""
        returns = [row["episode/reward"]] if "episode/reward" in row else []
        entropy = row.get("learn/entropy")
        figures = {} if entropy is None else {("entropy", "the policy"): entropy}
        return self._add(int(row["steps"]), returns, figures)

    def said(self) -> list[str]:
        """All sentences so far, for a report."""
        ended = "; after the last update this no longer holds"
        return [
            f"{text[0].upper()}{text[1:]}{'' if kind in self.holding else ended}."
            for kind, text in self.told.items()
        ]

    def _add(
        self,
        end: int,
        rewards: Sequence[float],
        figures: Mapping[tuple[str, str], float],
        *,
        flat: bool = False,
    ) -> list[str]:
        count, total, squares = self._sums[-1]
        squares += sum(one * one for one in rewards)
        self._sums.append((count + len(rewards), total + sum(rewards), squares))
        self._ends.append(end)
        self._flat.append(flat)
        for key, value in figures.items():
            self._series[key].append(value)
        found = dict(self._found())
        self.holding = set(found)
        new = {
            kind: f"warning after {self._words[2]} {end:,}: {text}"
            for kind, text in found.items()
            if kind not in self.told
        }
        self.told |= new
        return [*new.values()]

    def _found(self) -> Iterator[tuple[str, str]]:
        """The kinds that hold now, and what is said of each."""
        kinds = [*_HALVED, "reward"]
        says = [*map(self._halved, _HALVED), self._fallen()]
        for kind, what in zip(kinds, says, strict=True):
            if what:
                yield kind, f"{what}; what helps: {advice(self._config, kind)}"
        size = self._window(FLAT)
        if len(self._flat) >= size and all(self._flat[-size:]):
            reward = self._span(-size - 1, -1).mean
            yield (
                "flat",
                f"in all of the last {size} updates the samples of each group earned the same "
                f"(reward {reward:.3f}), so that nothing was learned; what helps: "
                f"{advice(self._config, flat_kind(reward))}",
            )

    def _window(self, least: tuple[int, int]) -> int:
        """In updates."""
        return max(least[0], -(-least[1] // self._every))

    def _halved(self, figure: str) -> str:
        """Which agents' means over the last window are below half of those over the first one."""
        size, (what, form) = self._window(HALF), _HALVED[figure]
        if figure not in _ADVICE[self._backend] or len(self._flat) < 2 * size:
            return ""
        fell = [
            f"{who} {form.format(fmean(values[:size]))}, then {form.format(fmean(values[-size:]))}"
            for (name, who), values in self._series.items()
            if name == figure and len(values) >= 2 * size and _has_halved(values, size)
        ]
        if not fell or (self._backend == "ppo" and self._risen(size)):
            return ""
        reward, units, _ = self._words
        began, now = self._span(0, size).mean, self._span(-size - 1, -1).mean
        over = f"the first and the last {size} {units}; {reward} {began:.3g}, then {now:.3g}"
        return f"{what}: {'; '.join(fell)} ({over})"

    def _risen(self, size: int) -> bool:
        """Whether the last window's reward is above that before it: a policy of games grows sure as
        it learns, which is no collapse."""
        before, now = self._span(0, -size - 1), self._span(-size - 1, -1)
        return not (before.of and now.of) or now.mean > before.mean

    def _fallen(self) -> str:
        """How far the last window's reward is below the best one's."""
        size = self._window(BEST)
        if len(self._flat) < 2 * size or not _comparable(self._config):
            return ""
        before, now = self._span(-2 * size - 1, -size - 1), self._span(-size - 1, -1)
        if before.of:
            self._best = max(self._best, before)
        best, gap = self._best, self._best.mean - now.mean
        spread = max((best.variance + now.variance) / 2, self._span(0, -1).variance)
        error = sqrt(spread * (1 / max(1, best.of) + 1 / max(1, now.of)))
        if not now.of or gap <= max(SURE * error, FALL * abs(best.mean)):
            return ""
        what, units, unit = self._words
        ends = f"[{-gap - _95 * error:+.3g}, {-gap + _95 * error:+.3g}]"
        return (
            f"{what} has fallen from its best: {best.mean:.3g} over the {size} {units} to {unit} "
            f"{best.end:,}, {now.mean:.3g} over the last {size}; difference {-gap:+.3g} {ends}"
        )

    def _span(self, first: int, last: int) -> _Span:
        """Of the updates between two places in the sums."""
        parts = zip(self._sums[last], self._sums[first], strict=True)
        count, total, squares = (after - before for after, before in parts)
        mean = total / max(1, count)
        return _Span(
            mean, max(0.0, squares / max(1, count) - mean * mean), int(count), self._ends[last]
        )


def _has_halved(values: Sequence[float], size: int) -> bool:
    """Whether the last mean is surely below half of the first one."""
    ends = values[:size], values[-size:]
    first, last = map(fmean, ends)
    if last >= first / 2:
        return False
    noise = fmean((a - b) ** 2 for one in ends for a, b in pairwise(one))  # twice the variance
    return first - last > SURE * sqrt(noise / size)


def _comparable(config: Mapping[str, Any]) -> bool:
    """Whether early rewards can be compared with late ones: neither a curriculum chooses the
    problems, nor do earlier versions of the policy play against it."""
    played = [name for one in config.get("agents", {}).values() for name in one.get("plays") or ()]
    return config.get("curriculum", "none") == "none" and "self" not in played


def collapses(
    config: Mapping[str, Any],
    events: Iterable[Event],
    glances: Mapping[int, Glance],
    batches: Iterable[Row] = (),
) -> Collapses:
    """What a run has shown so far."""
    found = Collapses(config)
    for row in batches:
        found.batch(row)
    if config.get("backend") != "ppo":
        for event in events:
            if isinstance(event, Learned):
                found.learned(event, glances)
    return found
