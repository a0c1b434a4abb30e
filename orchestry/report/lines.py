"""The figure of learning curves: the reward of each run, its parts, and the baselines' levels.

In the manner of the MAGRPO paper's figures (arXiv 2508.04652): a mean, and a band over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from orchestry.report.arms import Arm
from orchestry.report.curves import (
    Curve,
    axis,
    curve,
    dev_rewards,
    part,
    part_names,
    reward,
    window,
)
from orchestry.report.held import baselines, by_best
from orchestry.report.measures import searched
from orchestry.report.picture import Picture
from orchestry.report.style import DASHES, INK, WIDTH, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PARTS = 8
FEW_POINTS = 12
"""Up to so many, each gets a dot."""
_SPACE = 0.03
"""Of the reward's scale, above 1 and below 0."""
_XLABEL = {"updates": "updates taken", "episodes": "episodes"}


def draw(task: str, arms: Sequence[Arm]) -> Picture | None:
    """A large panel of the reward and a small one for each part; None before any episode."""
    from matplotlib.figure import Figure

    played = [arm for arm in arms if arm.runs]
    runs = [run for arm in played for run in arm.runs]
    if not runs:
        return None
    names, smooth = part_names(runs)[:MOST_PARTS], window(runs)
    names = names if len(names) > 1 else []
    height = 3.6 + 1.3 * max(0, _rows(len(names)) - 2)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    whole, *parts = _panels(figure, len(names))
    for arm in played:
        _line(whole, arm, curve(arm.runs, reward, smooth), _name(arm, played))
        _dev(whole, arm, played)
        for name, axes in zip(names, parts, strict=True):
            _line(axes, arm, curve(arm.runs, part(name), smooth), None)
    _levels(whole, played)
    whole.set(title=f"{task}: reward", xlabel=_XLABEL[axis(runs[0])], ylabel="reward")
    for name, axes in zip(names, parts, strict=True):
        axes.set_title(name.replace("_", " "), fontsize=9)
    handles, texts = whole.get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=min(4, len(texts)))
    return Picture(figure, caption(played, smooth))


def caption(arms: Sequence[Arm], smooth: int) -> str:
    """What the reward, a point, a band and the marks are."""
    runs = [run for arm in arms for run in arm.runs]
    unit = axis(runs[0])
    point = f"the mean of the last {smooth} {unit}" if smooth > 1 else f"one of the {unit}"
    several = any(len(arm.runs) > 1 for arm in arms)
    over = "from the lowest to the highest seed"
    alone = "1.96 standard errors over a point's episodes on each side"
    band = over if several else alone
    if several and any(len(arm.runs) == 1 for arm in arms):
        band = f"{over}, and of a single run {alone}"
    found = f"Reward of {_of(arms)}. A point is {point}; the band is {band}."
    if any(dev_rewards(run) for run in runs):
        found += " Diamonds: the team on dev problems, all trajectories."
    if any(baselines(one) for arm in arms for one in arm.experiments):
        found += " Dashed: what baselines earn on the split named."
    return found


def _of(arms: Sequence[Arm]) -> str:
    """Which trajectories' reward it is."""
    best = [arm.label for arm in arms if searched(arm.runs[0])]
    if not best:
        return "all trajectories, in the mean"
    if len(best) == len(arms):
        return "each episode's best trajectory"
    return f"each episode's best trajectory ({', '.join(best)}), of the others the mean over all"


def _rows(parts: int) -> int:
    return -(-parts // 2)


def _panels(figure: Figure, parts: int) -> list[Axes]:
    """The reward's on the left, as high as the parts' rows of two beside it."""
    if not parts:
        found = [figure.subplots()]
    else:
        grid = figure.add_gridspec(_rows(parts), 4)
        found = [figure.add_subplot(grid[:, :2])]
        places = [(number // 2, 2 + number % 2) for number in range(parts)]
        found += [figure.add_subplot(grid[place], sharex=found[0]) for place in places]
    for axes in found:
        axes.set_ylim(-_SPACE, 1 + _SPACE)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    for axes in found[1:]:
        axes.set_yticks([0, 0.5, 1])
        axes.tick_params(labelsize=8)
    return found


def _line(axes: Axes, arm: Arm, found: Curve | None, label: str | None) -> None:
    """An arm's curve; with a label it is the large panel's."""
    if found is None:
        return
    ink, bold = colour(arm.number), label is not None
    axes.fill_between(found.x, found.low, found.high, color=ink, alpha=0.16, linewidth=0)
    for row in found.seeds if len(found.seeds) > 1 else ():
        axes.plot(found.x, row, color=ink, linewidth=0.6, alpha=0.45)
    axes.plot(
        found.x,
        found.mean,
        color=ink,
        linewidth=2 if bold else 1.5,
        marker="o" if len(found.x) <= FEW_POINTS else "",
        markersize=4 if bold else 2.5,
        label=label,
    )


def _name(arm: Arm, arms: Sequence[Arm]) -> str:
    """In the legend: alone, a run is named by the problems it plays."""
    split = arm.runs[0].config.get("split", "train")
    name = arm.label if len(arms) > 1 else f"{split} problems"
    return f"{name}, mean of {len(arm.runs)} seeds" if len(arm.runs) > 1 else name


def _dev(axes: Axes, arm: Arm, arms: Sequence[Arm]) -> None:
    """What the team earned on dev as it learned: at each update the mean over the runs."""
    by_run = [dev_rewards(run) for run in arm.runs]
    updates = sorted({update for row in by_run for update in row})
    if not updates:
        return
    axes.plot(
        updates,
        [fmean(row[update] for row in by_run if update in row) for update in updates],
        color=colour(arm.number),
        linestyle="none",
        marker="D",
        markersize=6,
        markerfacecolor="white",
        markeredgewidth=1.6,
        zorder=4,
        label=f"{arm.label}, dev problems" if len(arms) > 1 else "dev problems",
    )


def _levels(axes: Axes, arms: Sequence[Arm]) -> None:
    """A dashed line a baseline: its mean over the runs that have it."""
    found: dict[str, list[float]] = {}
    for experiment in (one for arm in arms for one in arm.experiments):
        for held in baselines(experiment):
            best = by_best(experiment.run, held)
            level = held.measures.best if best else held.measures.reward
            name = f"{held.name.replace('_', ' ')}, {held.split}{' (best)' if best else ''}"
            found.setdefault(name, []).append(level.mean)
    for number, (name, levels) in enumerate(sorted(found.items())):
        dash = (0, DASHES[number % len(DASHES)])
        axes.axhline(fmean(levels), color=INK, linewidth=1.2, linestyle=dash, label=name)
