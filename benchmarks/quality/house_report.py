"""The section of benchmarks.quality.house_style: what runs learned, and what held them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from benchmarks.quality.house_model import (
    CONVENTIONS,
    PROBLEMS,
    RULES,
    TASK,
    WEIGHTS,
    Model,
    known,
    reward,
)
from benchmarks.stats import columns
from orchestry.backends.library import IN_RUN, Behavior, read_library
from orchestry.core.types import SPLITS
from orchestry.report import stats
from orchestry.store.journal import Learned
from orchestry.store.run import Run

SEARCH, TRIALS = ("act",), ("trial", "distil")
"""Purposes of calls."""
Sort = Callable[[Behavior], bool]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run: settings of `behaviors`, and how many conventions a distilled rule states."""

    name: str
    behaviors: Mapping[str, Any] = field(hash=False)
    per_rule: int = 1
    longer: int = 1
    """Its length, as a multiple of the others'."""


@dataclass(frozen=True, slots=True)
class Seed:
    """One run, and its team on the test split, untrained and as it was left."""

    model: Model
    run: Run
    before: Run
    after: Run

    @property
    def behaviors(self) -> Sequence[Behavior]:
        """All that was proposed, but near-duplicates."""
        library = read_library(self.run.folder / IN_RUN)
        return [one for one in library.behaviors if one.status != "merged"]

    @property
    def accepted(self) -> list[Behavior]:
        return [one for one in self.behaviors if one.status == "accepted"]

    @property
    def learned(self) -> set[str]:
        """The conventions that stand in a prompt of the team."""
        return set[str]().union(*(known(one.text) for one in self.accepted))

    @property
    def false(self) -> int:
        """Behaviours in a prompt that state no convention."""
        return sum(not known(one.text) for one in self.accepted)

    @property
    def gain(self) -> float:
        return policy(self.after) - policy(self.before)

    @property
    def pairs(self) -> int:
        """All that the run played on dev."""
        learned = [event for event in self.run.events if isinstance(event, Learned)]
        return int(learned[-1].state["pairs"]) if learned else 0

    def calls(self, purposes: Sequence[str]) -> int:
        """Calls of these purposes in the run."""
        rows = self.run.summary.usage
        return sum(row.calls + row.cache_hits for row in rows if row.purpose in purposes)


def policy(run: Run) -> float:
    """The mean reward of an evaluation's trajectories."""
    found = run.summary.mean_trajectory_reward
    assert found is not None, "an evaluation that is done has trajectories"
    return found


def report(found: Mapping[Variant, Sequence[Seed]], episodes: int, samples: int) -> str:
    """The section's body."""
    first = next(iter(found.values()))
    count = len(first)
    blocks = [
        f"A scripted model obeys the rules in its prompts and has habits drawn from a seed; no "
        f"language model is asked. {count} runs a row of {episodes} episodes on train, default "
        f"settings of everything but what the row names. The test split has other kinds of text "
        f"and other subjects than train and dev; its {len(TASK.problems('test'))} problems are "
        f"played {samples} times each by the team, without search.",
        _starts([seed.model for seed in first]),
        _runs(found),
        "Figures are means over runs; the gain has its 95 % interval over them. A convention "
        "counts once, also if both prompts state it. *False*: accepted behaviours that state none.",
        _why(first, [seed.model for seed in first]),
        "Gains are in points of the reward, as a mean over candidates. The true gain is that of "
        "one rule alone in the editor's prompt, as a mean over all conventions of that weight.",
        _reasons(found),
    ]
    return "\n\n".join(blocks)


def _starts(models: Sequence[Model]) -> str:
    """What the scripted team earns without learning, and with every rule."""
    every = " ".join(RULES.values())
    rows = []
    for name, rules in (("no rule", ""), ("all rules, editor only", every)):
        rows.append({"prompts": name} | {split: _worth(models, split, rules) for split in SPLITS})
    return f"Mean reward of one trajectory:\n\n{columns(rows)}"


def _worth(models: Sequence[Model], split: str, rules: str) -> str:
    return f"{fmean(reward(model, one, rules) for model in models for one in _of(split)):.3f}"


def _of(split: str) -> list[str]:
    return [name for name, problem in PROBLEMS.items() if problem.split == split]


def _runs(found: Mapping[Variant, Sequence[Seed]]) -> str:
    """A row per variant."""
    return columns(
        [
            {
                "runs": variant.name,
                "test before": f"{fmean(policy(seed.before) for seed in seeds):.3f}",
                "test after": f"{fmean(policy(seed.after) for seed in seeds):.3f}",
                "gain": _between([seed.gain for seed in seeds]),
                f"conventions learned of {len(RULES)}": _mean(len(s.learned) for s in seeds),
                "false": _mean(seed.false for seed in seeds),
                "calls of search": f"{fmean(seed.calls(SEARCH) for seed in seeds):.0f}",
                "of trials": f"{fmean(seed.calls(TRIALS) for seed in seeds):.0f}",
            }
            for variant, seeds in found.items()
        ]
    )


def _why(seeds: Sequence[Seed], models: Sequence[Model]) -> str:
    """What became of the default runs' candidates, by what they are about."""
    sorts: dict[str, Sort] = {
        "rules, convention of weight 2": lambda b: _weight(b) == CONVENTIONS.MAJOR,
        "rules, convention of weight 1": lambda b: _weight(b) == CONVENTIONS.MINOR,
        "whole prompts": lambda b: b.kind == "prompt",
        "rules without a convention": lambda b: b.kind == "rule" and not known(b.text),
        "examples": lambda b: b.kind == "example",
    }
    rows = []
    truths = (*_gains(models), _whole_gain(seeds, models), "0.0", "0.0")
    for (name, sort), truth in zip(sorts.items(), truths, strict=True):
        mine = [[one for one in seed.behaviors if sort(one)] for seed in seeds]
        tried = [one.evidence for each in mine for one in each if one.evidence]
        rows.append(
            {
                "candidates of a default run": name,
                "proposed": _mean(map(len, mine)),
                "pairs each": f"{fmean([one.pairs for one in tried] or [0]):.0f}",
                "measured gain": f"{100 * fmean([one.lift for one in tried] or [0.0]):+.1f}",
                "true gain": truth,
                **{
                    status: _mean(sum(one.status == status for one in each) for each in mine)
                    for status in ("accepted", "rejected", "trial")
                },
            }
        )
    return columns(rows)


def _weight(behavior: Behavior) -> float:
    """Of the weightiest convention that a rule states; 0 if none."""
    names = known(behavior.text) if behavior.kind == "rule" else set[str]()
    return max((WEIGHTS[name] for name in names), default=0.0)


def _gains(models: Sequence[Model]) -> list[str]:
    """Points that one rule adds on dev in an editor's prompt, by its weight, over all rules."""
    gains: dict[float, list[float]] = {CONVENTIONS.MAJOR: [], CONVENTIONS.MINOR: []}
    for model in models:
        for problem in _of("dev"):
            base = reward(model, problem, "")
            for name, rule in RULES.items():
                gains[WEIGHTS[name]].append(reward(model, problem, rule) - base)
    return [f"{100 * fmean(values):+.1f}" for values in gains.values()]


def _whole_gain(seeds: Sequence[Seed], models: Sequence[Model]) -> str:
    """Points that the rules of a whole prompt add on dev, as an editor's, over all prompts."""
    gains = list[float]()
    for seed, model in zip(seeds, models, strict=False):
        for behavior in (b for b in seed.behaviors if b.kind == "prompt"):
            rules = "\n".join(RULES[name] for name in known(behavior.text))
            gains += [reward(model, one, rules) - reward(model, one, "") for one in _of("dev")]
    return f"{100 * fmean(gains or [0.0]):+.1f}"


def _reasons(found: Mapping[Variant, Sequence[Seed]]) -> str:
    """What limits the default run, in figures."""
    seeds = next(iter(found.values()))
    most = seeds[0].run.config["behaviors"]["max_per_agent"]
    proposed = [set[str]().union(*(known(b.text) for b in s.behaviors)) for s in seeds]
    again = [_again(seed) for seed in seeds]
    won = [one.evidence.pairs for seed in seeds for one in seed.accepted if one.evidence]
    full = [sum(_count(seed, role) >= most for role in ("writer", "editor")) for seed in seeds]
    return "\n".join(
        [
            f"- At most {most} rules and examples are added to an agent's prompt; "
            f"{fmean(full):.1f} of the team's two prompts are full at the end.",
            f"- A run plays {fmean(seed.pairs for seed in seeds):.0f} pairs in all. What is "
            f"accepted takes {fmean(won or [0]):.0f} of them in the mean ({len(won)} behaviours in "
            f"{len(seeds)} runs).",
            f"- A run proposes rules about {fmean(map(len, proposed)):.1f} of the {len(RULES)} "
            f"conventions; {fmean(again):.1f} of its rules are about one that it proposed for the "
            "other agent too, where it gains little.",
            f"- One trajectory's reward has the sd {100 * _spread(seeds):.1f} points here, before "
            "learning.",
        ]
    )


def _again(seed: Seed) -> int:
    """Conventions that were proposed for both agents."""
    mine, other = (
        set[str]().union(*(known(b.text) for b in seed.behaviors if b.agent == role))
        for role in ("writer", "editor")
    )
    return len(mine & other)


def _count(seed: Seed, role: str) -> int:
    return sum(one.agent == role for one in seed.accepted)


def _spread(seeds: Sequence[Seed]) -> float:
    """The sd of trajectories' rewards within a problem of the untrained team."""
    return fmean(
        stdev([node.value for node in episode.leaves() if node.value is not None])
        for seed in seeds
        for episode in seed.before.episodes
    )


def _between(values: Sequence[float]) -> str:
    found = stats.interval(values)
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _mean(values: Any) -> str:
    return f"{fmean(values):.1f}"
