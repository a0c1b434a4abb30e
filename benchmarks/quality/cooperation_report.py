"""The section of benchmarks.quality.cooperation: how often teams cooperate, solve, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.quality.cooperation_swaps import Swaps
from benchmarks.stats import Rows, bounds, columns, difference, interval, share
from orchestry.report.text import table
from orchestry.store.journal import Evaluated, Learned, Opened
from orchestry.store.records import EpisodeRecord, NodeRecord
from orchestry.store.run import Run

SCHEMES = ("fallback", "decorator", "coordinator", "strategy_filter")
GOALS = {"cooperates": 0.7, "tests": 0.5}
"""Of the learned team on generated test problems: the share of trajectories that cooperate, and of
tests passed."""
_SPLITS = 10
"""Of a run's episodes, for the curve."""


@dataclass(frozen=True, slots=True)
class Played:
    """All of one seed: the run of MAGRPO, the teams on test problems, and the baselines."""

    seed: int
    run: Run
    tests: Mapping[tuple[str, str], Run]
    """By team and bank."""
    baselines: Mapping[tuple[str, str], Run]
    """By team and baseline, on generated problems."""


def report(played: Sequence[Played], swaps: Swaps) -> str:
    """The section's body."""
    teams = list(dict.fromkeys(team for team, _ in played[0].tests))
    banks = list(dict.fromkeys(bank for _, bank in played[0].tests))
    blocks = [_setting(played)]
    for bank in banks:
        blocks += [f"### Test problems, {bank}", _teams(played, teams, bank)]
    blocks += [
        _gain(played, *teams[-2:], banks[0]),
        _goals(played, banks[0]),
        "### Baselines on generated test problems",
        _baselines(played, teams[-1], banks[0]),
        "### Over training",
        _curve(played),
        "### The learned main programmer with other helpers",
        "The main programmer's recorded answers, put together with the recorded answers of each "
        "helper to the same problem and scored again. Mean reward over all seeds:",
        table(["helper", "reward"], ([name, interval(rows)] for name, rows in swaps.items())),
        _example(played[0], teams, banks[0]),
    ]
    return "\n\n".join(blocks)


def _setting(played: Sequence[Played]) -> str:
    run = played[0].run
    config, learn = run.config, run.config["learn"]
    resumed = [sum(isinstance(event, Opened) for event in one.run.events) - 1 for one in played]
    return (
        f"Two agents of {config['provider']['model']}, {learn['dtype']}, one thread. "
        f"Seeds {', '.join(str(one.seed) for one in played)}. {len(run.episodes)} episodes of "
        f"{learn['group_size']} trajectories, an update per {learn['every']} problems, learning "
        f"rate {learn['learning_rate']:g}, answers of at most {config['sampling']['max_tokens']} "
        f"tokens; killed by SIGKILL and resumed {', '.join(map(str, resumed))} times. Intervals "
        "are 95 % bootstraps over problems, each with all its seeds; the untrained team was played "
        "once. `tests` is that part of the "
        "reward: the share of tests passed beyond chance, times cooperation."
    )


def _teams(played: Sequence[Played], teams: Sequence[str], bank: str) -> str:
    found = []
    for team in teams:
        once = {one.tests[team, bank].folder: one.tests[team, bank] for one in played}
        runs = [*once.values()]  # the untrained team's is the same for all seeds
        leaves = [*_leaves(runs)]
        schemes = _schemes(leaves)
        cells = {"team": team, "reward": interval(rewards(runs))}
        cells |= {name: f"{part(leaves, name):.2f}" for name in ("structure", "syntax", "tests")}
        cells |= {
            "cooperates": share(
                sum("cooperates" in leaf.score.tags for leaf in leaves), len(leaves)
            ),
            "solved (pass@1)": f"{_tagged(leaves, 'solved'):.3f}",
            "schemes of solved": _listed(schemes),
        }
        found.append(cells)
    return columns(found, figures=False)


def _schemes(leaves: Sequence[NodeRecord]) -> Counter[str]:
    """How often each scheme is that of a trajectory that solves its problem."""
    tags = (tag for leaf in leaves if "solved" in leaf.score.tags for tag in leaf.score.tags)
    names = (tag.removeprefix("scheme_") for tag in tags)
    return Counter(name for name in names if name in SCHEMES)


def _listed(schemes: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in schemes.most_common()) or "none"


def _gain(played: Sequence[Played], first: str, last: str, bank: str) -> str:
    """What MAGRPO adds over the team that it begins with."""
    after = rewards([one.tests[last, bank] for one in played])
    before = rewards([one.tests[first, bank] for one in played])
    rows = difference(after, before)
    low, high = bounds(rows)
    word = "above 0" if low > 0 else "below 0" if high < 0 else "not told from 0"
    return f"MAGRPO changes the {first} team's reward by {interval(rows)}: {word}."


def by_rate(played: Sequence[Played]) -> str:
    """What MAGRPO comes to at several learning rates, seed by seed, from the same warm starts."""
    rows = []
    for one in sorted(played, key=lambda one: (one.seed, -_rate(one))):
        dev = [event.reward for event in one.run.events if isinstance(event, Evaluated)]
        (_, bank), *_ = one.tests
        warm, learned = one.tests["warm", bank], one.tests["learned", bank]
        change = difference(rewards([learned]), rewards([warm]))
        leaves = [*_leaves([learned])]
        rows.append(
            {
                "seed": str(one.seed),
                "rate": f"{_rate(one):g}",
                "dev, begin to end": f"{dev[0]:.3f} to {dev[-1]:.3f}",
                "test, warm": interval(rewards([warm])),
                "test, learned": interval(rewards([learned])),
                "change": interval(change),
                "cooperates": f"{_tagged(leaves, 'cooperates'):.1%}",
                "pass@1": f"{_tagged(leaves, 'solved'):.3f}",
            }
        )
    return f"### Learning rates\n\n{columns(rows, figures=False)}"


def _rate(one: Played) -> float:
    return float(one.run.config["learn"]["learning_rate"])


def _goals(played: Sequence[Played], bank: str) -> str:
    """The goals that were set before any training, and whether they are met."""
    leaves = [*_leaves(one.tests["learned", bank] for one in played)]
    before = [*_leaves(one.tests["untrained", bank] for one in played)]
    solved = [leaf for leaf in leaves if "solved" in leaf.score.tags]
    seen = {
        scheme for scheme in SCHEMES for leaf in solved if f"scheme_{scheme}" in leaf.score.tags
    }
    figures = {
        "cooperates": (_tagged(before, "cooperates"), _tagged(leaves, "cooperates")),
        "tests": (part(before, "tests"), part(leaves, "tests")),
    }
    lines = [
        f"- {name}: {first:.2f} before, {last:.2f} after; goal {GOALS[name]:.2f}: "
        f"{'met' if last >= GOALS[name] else 'missed'}."
        for name, (first, last) in figures.items()
    ]
    whole = "met" if len(seen) == len(SCHEMES) else "missed"
    return "\n".join([*lines, f"- schemes on solved problems: {len(seen)} of 4: {whole}."])


def _baselines(played: Sequence[Played], ours: str, bank: str) -> str:
    names = list(dict.fromkeys(name for _, name in played[0].baselines))
    own = solved_rate([one.tests[ours, bank] for one in played])
    found = [{"baseline": "the learned team", "played by": ours, "pass@1": interval(own)}]
    for team, name in played[0].baselines:
        runs = [one.baselines[team, name] for one in played]
        rows = solved_rate(runs)
        low, _ = bounds(difference(own, rows))
        found.append(
            {
                "baseline": name,
                "played by": team,
                "pass@1": interval(rows),
                "learned is ahead": "yes" if low > 0 else "not shown",
            }
        )
    found[0]["learned is ahead"] = ""
    assert names, "at least one baseline is played"
    return columns(found, figures=False)


def _curve(played: Sequence[Played]) -> str:
    """Cooperation, solved problems and schemes in each tenth of the episodes, all seeds."""
    found = []
    for number in range(_SPLITS):
        leaves = [leaf for one in played for leaf in _tenth(one.run.episodes, number)]
        cells = {
            "episodes": f"tenth {number + 1}",
            "reward": f"{fmean(leaf.score.total for leaf in leaves):.3f}",
            "cooperates": f"{_tagged(leaves, 'cooperates'):.2f}",
            "solved": f"{_tagged(leaves, 'solved'):.2f}",
        }
        cells |= {name: f"{_tagged(leaves, f'scheme_{name}'):.2f}" for name in SCHEMES}
        found.append(cells)
    updates = [sum(isinstance(event, Learned) for event in one.run.events) for one in played]
    return f"{columns(found)}\n\nUpdates: {', '.join(map(str, updates))}."


def _tenth(episodes: Sequence[EpisodeRecord], number: int) -> Iterator[NodeRecord]:
    first, last = (len(episodes) * n // _SPLITS for n in (number, number + 1))
    for episode in episodes[first:last]:
        yield from episode.leaves()


def _example(played: Played, teams: Sequence[str], bank: str) -> str:
    """The same problem early and late: the first that the learned team solves and the untrained
    team does not."""
    late = played.tests[teams[-1], bank].episodes
    early = {one.problem: one for one in played.tests[teams[0], bank].episodes}
    chosen = next((one for one in late if _won(one) and not _won(early[one.problem])), late[0])
    lines = [f"<details><summary>`{chosen.problem}`, untrained and learned</summary>"]
    for name, episode in (("Untrained", early[chosen.problem]), ("Learned", chosen)):
        leaf = episode.best_node
        lines += [f"{name}, reward {leaf.score.total:.2f}, {', '.join(leaf.score.tags)}:"]
        lines += [f"~~~~text\n{t.agent}: {t.completion.text.strip()}\n~~~~" for t in leaf.turns]
    return "\n\n".join([*lines, "</details>"])


def _won(episode: EpisodeRecord) -> bool:
    return "solved" in episode.best_node.score.tags


def rewards(runs: Sequence[Run]) -> Rows:
    """By problem, the mean reward of each seed."""
    return _by_problem(runs, lambda leaf: leaf.score.total)


def solved_rate(runs: Sequence[Run]) -> Rows:
    """By problem, the share of each seed's trajectories that solve it."""
    return _by_problem(runs, lambda leaf: float("solved" in leaf.score.tags))


def part(leaves: Sequence[NodeRecord], name: str) -> float:
    """The mean of one part of the reward."""
    return fmean(one.value for leaf in leaves for one in leaf.score.parts if one.name == name)


def _by_problem(runs: Sequence[Run], figure: Callable[[NodeRecord], float]) -> Rows:
    rows: Rows = {}
    for run in runs:
        for episode in run.episodes:
            rows.setdefault(episode.problem, []).append(fmean(map(figure, episode.leaves())))
    return rows


def _count(leaves: Sequence[NodeRecord], tag: str) -> int:
    return sum(tag in leaf.score.tags for leaf in leaves)


def _tagged(leaves: Sequence[NodeRecord], tag: str) -> float:
    return _count(leaves, tag) / len(leaves)


def _leaves(runs: Iterable[Run]) -> Iterator[NodeRecord]:
    for run in runs:
        for episode in run.episodes:
            yield from episode.leaves()
