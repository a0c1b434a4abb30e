"""The figure of cooperation: how a team learns on dev and in its updates, and what it does on test.

Bold lines with marks are dev problems, thin ones the trajectories of each update; one of each kind
per seed. Bars are test problems: the mean over all seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from orchestry.store.journal import Evaluated
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run

Tests = Mapping[str, Sequence[Run]]
"""By team in the order in which they learned, a run per seed."""
REWARD = "reward"
SHOWN = {REWARD: "#0b6e4f", "cooperates": "#c4560b", "solved": "#3b5b92"}
"""What is drawn: the mean reward, and the share of trajectories with a tag."""
SHADES = {"untrained": 0.3, "warm": 0.6, "learned": 1.0}


def draw(runs: Sequence[Run], tests: Tests, path: Path) -> None:
    """Writes the figure as SVG (extra `plots`)."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    fixed = {"svg.fonttype": "none", "svg.hashsalt": "orchestry", "font.size": 9}
    with pyplot.rc_context(fixed):
        figure, (curves, bars) = pyplot.subplots(
            1, 2, figsize=(8, 3), sharey=True, width_ratios=(3, 2), layout="constrained"
        )
        for name, colour in SHOWN.items():
            for place, run in enumerate(runs):
                label = name if place == 0 else None
                curves.plot(*_dev(run, name), color=colour, marker="o", linewidth=2, label=label)
                curves.plot(*_updates(run, name), color=colour, linewidth=0.7, alpha=0.6)
        width = 0.8 / len(tests)
        for place, (team, played) in enumerate(tests.items()):
            heights = [fmean(share(run.episodes, name) for run in played) for name in SHOWN]
            at = [x + (place + 0.5) * width - 0.4 for x in range(len(SHOWN))]
            drawn = bars.bar(at, heights, width, color=[*SHOWN.values()], alpha=SHADES[team])
            bars.bar_label(drawn, [f"{one:.2f}" for one in heights], fontsize=8)
        curves.set(title="dev (bold) and updates", xlabel="update", ylim=(0, 1.05))
        curves.xaxis.get_major_locator().set_params(integer=True)
        curves.grid(alpha=0.25)
        curves.legend(frameon=False, loc="upper left")
        bars.set(title=f"test: {', '.join(tests)}", xticks=range(len(SHOWN)), xticklabels=SHOWN)
        figure.savefig(path, facecolor="white", metadata={"Date": None})
        pyplot.close(figure)


def share(episodes: Sequence[EpisodeRecord], name: str) -> float:
    """Mean reward of the trajectories, or the share of them with that tag."""
    leaves = [leaf.score for one in episodes for leaf in one.leaves()]
    return fmean(one.total if name == REWARD else float(name in one.tags) for one in leaves)


def _dev(run: Run, name: str) -> tuple[list[int], list[float]]:
    """Updates, and what dev showed after each."""
    found = [event for event in run.events if isinstance(event, Evaluated)]
    shown = [one.reward if name == REWARD else one.tags.get(name, 0.0) for one in found]
    return [one.update for one in found], shown


def _updates(run: Run, name: str) -> tuple[list[int], list[float]]:
    """Updates, and the trajectories that each learned from."""
    every = run.config["learn"]["every"]
    blocks = [run.episodes[first : first + every] for first in range(0, len(run.episodes), every)]
    return [*range(1, len(blocks) + 1)], [share(block, name) for block in blocks]
