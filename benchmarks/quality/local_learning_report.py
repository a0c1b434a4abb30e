"""The section of benchmarks.quality.local_learning: what the team earned, and what it writes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.stats import Rows, bounds, columns, difference, interval, mean
from orchestry.report.text import table
from orchestry.store.journal import Learned
from orchestry.store.records import EpisodeRecord, NodeRecord
from orchestry.store.run import Run

LEARNING, CONTROL = ARMS = ("learning", "control")
VISITS = 5
"""How often a run visits each of its problems: a fifth of its episodes has them all once."""
PLOT = "local_learning.svg"


@dataclass(frozen=True, slots=True)
class Played:
    """A run, its team on the test problems, and what the run took, start and loading included."""

    run: Run
    test: Run
    wall_s: float
    cpu_s: float

    @property
    def first(self) -> Sequence[EpisodeRecord]:
        """The first visit to each problem."""
        return self.run.episodes[: len(self.run.episodes) // VISITS]

    @property
    def last(self) -> Sequence[EpisodeRecord]:
        """The last one."""
        return self.run.episodes[-(len(self.run.episodes) // VISITS) :]

    @property
    def rewards(self) -> list[float]:
        """The mean reward of each update's episodes."""
        learned = [event for event in self.run.events if isinstance(event, Learned)]
        return [event.state["reward"] for event in learned]


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that was played, by task and arm, in the order of the seeds."""

    played: Mapping[str, Mapping[str, Sequence[Played]]]
    seeds: Sequence[int]
    at_once: int

    def curves(self) -> dict[str, dict[str, list[list[float]]]]:
        """By task and arm, the rewards by update, one list a seed."""
        return {
            task: {arm: [one.rewards for one in played] for arm, played in arms.items()}
            for task, arms in self.played.items()
        }


def report(results: Results, plot: bool = True) -> str:
    """The section's body; `plot`: with its picture."""
    blocks = [_setting(results), *([f"![Reward by update]({PLOT})"] if plot else [])]
    for task, arms in results.played.items():
        blocks += [
            f"### {task}",
            _task_setting(arms[LEARNING][0].run),
            _gains(arms),
            _verdict(arms),
            _seeds(results.seeds, arms),
            _habits(arms),
            _example(arms),
        ]
    return "\n\n".join(blocks)


def by_problem(parts: Sequence[Sequence[EpisodeRecord]]) -> Rows:
    """The mean reward of each problem's trajectories, one figure a seed."""
    rows: defaultdict[str, list[float]] = defaultdict(list)
    for episodes in parts:
        for episode in episodes:
            rows[episode.problem].append(episode.mean_leaf_reward)
    return dict(rows)


@dataclass(frozen=True, slots=True)
class Earned:
    """What an arm earned, by problem and seed."""

    first: Rows
    last: Rows
    test: Rows

    @property
    def gain(self) -> Rows:
        return difference(self.last, self.first)


def earned(played: Sequence[Played]) -> Earned:
    """In the first fifth, in the last one, and on the test problems after the run."""
    return Earned(
        by_problem([one.first for one in played]),
        by_problem([one.last for one in played]),
        by_problem([one.test.episodes for one in played]),
    )


def _setting(results: Results) -> str:
    return (
        f"Seeds {', '.join(map(str, results.seeds))}; settings were chosen with others, "
        "on train problems, by the largest gain there. A run visits each of its train problems "
        "once in each fifth of its episodes. The control is the same run with learning rate 0, so "
        "that it "
        "draws from the untrained team to its end; what it earns on the test problems is what "
        "the team was worth before. Rewards are means over all trajectories drawn, not over the "
        "best ones. Intervals are 95 % bootstraps over problems, each with all its seeds; they "
        "say nothing on other seeds, which the table by seed shows. A run is a process with one "
        f"thread, {results.at_once} at a time."
    )


def _task_setting(run: Run) -> str:
    config = run.config
    learn, sampling = config["learn"], config["sampling"]
    rates = [event.state["rate"] for event in run.events if isinstance(event, Learned)]
    problems = len(run.episodes) // VISITS
    return (
        f"{problems} train problems, visited {VISITS} times; {learn['group_size']} trajectories of "
        f"each, {len(rates)} updates of {learn['every']} problems; learning rate {max(rates):g} "
        f"from update {rates.index(max(rates)) + 1} on; temperature {sampling['temperature']:g}, "
        f"top-p {learn['top_p']:g}, at most {sampling['max_tokens']} tokens per answer; LoRA of "
        f"rank {learn['rank']}, base in {learn['dtype']}."
    )


def _gains(arms: Mapping[str, Sequence[Played]]) -> str:
    one, other = earned(arms[LEARNING]), earned(arms[CONTROL])
    ours, theirs = ((arm.first, arm.last, arm.gain, arm.test) for arm in (one, other))
    rows = {
        LEARNING: ours,
        "control (untrained)": theirs,
        "difference": map(difference, ours, theirs),
    }
    return table(
        ["", "first fifth", "last fifth", "gain", "test problems"],
        ([name, *map(interval, cells)] for name, cells in rows.items()),
    )


def _verdict(arms: Mapping[str, Sequence[Played]]) -> str:
    """What the intervals allow to say."""
    one, other = earned(arms[LEARNING]), earned(arms[CONTROL])
    return (
        f"Beyond the control's, the gain from first to last fifth is "
        f"{_sign(difference(one.gain, other.gain))}; on test problems the team is worth "
        f"{mean(one.test):.3f} after learning and {mean(other.test):.3f} before: the difference is "
        f"{_sign(difference(one.test, other.test))}."
    )


def _sign(rows: Rows) -> str:
    low, high = bounds(rows)
    if low > 0:
        return "above 0"
    return "below 0" if high < 0 else "not told from 0"


def _seeds(seeds: Sequence[int], arms: Mapping[str, Sequence[Played]]) -> str:
    rows = []
    for seed, one, other in zip(seeds, arms[LEARNING], arms[CONTROL], strict=True):
        fifths = [f"{_mean(arm.first):.3f} to {_mean(arm.last):.3f}" for arm in (one, other)]
        test = f"{_mean(other.test.episodes):.3f} to {_mean(one.test.episodes):.3f}"
        times = ", ".join(f"{p.wall_s / 60:.1f} ({p.cpu_s / 60:.1f})" for p in (one, other))
        cells = {
            "seed": str(seed),
            "learning: first, last fifth": fifths[0],
            "control: first, last fifth": fifths[1],
            "test problems: before, after": test,
            "minutes (CPU) of the two runs": times,
        }
        rows.append(cells)
    return columns(rows)


def _mean(episodes: Sequence[EpisodeRecord]) -> float:
    return fmean(episode.mean_leaf_reward for episode in episodes)


def _habits(arms: Mapping[str, Sequence[Played]]) -> str:
    """What else changed on the test problems: parts of the reward, tags, lengths."""
    before, after = (_counted(arms[arm]) for arm in (CONTROL, LEARNING))
    names = [*before, *(name for name in after if name not in before)]
    rows = [[name, *(f"{when.get(name, 0):.2f}" for when in (before, after))] for name in names]
    return table(["test problems, all seeds", "before", "after"], rows)


def _counted(played: Sequence[Played]) -> dict[str, float]:
    leaves = [leaf for one in played for episode in one.test.episodes for leaf in episode.leaves()]
    parts, tags = defaultdict[str, list[float]](list), Counter[str]()
    tokens, ended = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for leaf in leaves:
        tags.update(leaf.score.tags)
        for part in leaf.score.parts:
            parts[f"reward: {part.name}"].append(part.value)
        for turn in leaf.turns:
            tokens[f"{turn.agent}: tokens per answer"].append(turn.completion.output_tokens)
            ended[f"{turn.agent}: answers that end by themselves"].append(
                turn.completion.stop == "end"
            )
    found: dict[str, Any] = {name: fmean(row) for name, row in (parts | tokens | ended).items()}
    return found | {f"tagged {tag}": tags[tag] / len(leaves) for tag in sorted(tags)}


def _example(arms: Mapping[str, Sequence[Played]]) -> str:
    """The first seed's first answers to the test problem whose reward after learning is median."""
    before, after = (arms[arm][0].test.episodes for arm in (CONTROL, LEARNING))
    chosen = sorted(after, key=lambda e: e.mean_leaf_reward)[len(after) // 2]
    same = next(episode for episode in before if episode.problem == chosen.problem)
    lines = [
        f"<details><summary>First answers of the first seed on `{chosen.problem}`, the test "
        "problem of median reward after learning, before and after</summary>"
    ]
    for when, episode in (("before", same), ("after", chosen)):
        leaf = next(episode.leaves())
        lines += [f"{when.capitalize()}, reward {leaf.value:.2f}:", *_answers(leaf)]
    return "\n\n".join([*lines, "</details>"])


def _answers(leaf: NodeRecord) -> Iterator[str]:
    for turn in leaf.turns:
        yield f"~~~~text\n{turn.agent}: {turn.completion.text.strip()}\n~~~~"
