"""The figure of comparisons: the team on held-out problems beside its baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestry.report.arms import Arm
from orchestry.report.experiment import Experiment
from orchestry.report.held import Held, baselines, by_best, evaluations
from orchestry.report.measures import searched
from orchestry.report.picture import Picture
from orchestry.report.style import INK, WIDTH, colour, lighter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASELINE = "#A8A8A8"
_Row = tuple[str, str, Held, bool]
"""Name, colour, measurement, and whether its best trajectories are what it is worth."""


def draw(task: str, arms: Sequence[Arm]) -> Picture | None:
    """A panel a split, a bar a measurement; None where nothing was measured around the runs."""
    from matplotlib.figure import Figure

    rows = [row for arm in arms for one in arm.experiments for row in _rows(arm, one, arms)]
    splits = list(dict.fromkeys(held.split for _, _, held, _ in rows))
    if not rows:
        return None
    panels = [[row for row in rows if row[2].split == split] for split in splits]
    heights = [len(panel) + 0.8 for panel in panels]
    figure = Figure(figsize=(WIDTH, 0.34 * sum(heights) + 0.9), layout="constrained")
    found = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights, sharex=True)[:, 0]
    for split, panel, axes in zip(splits, panels, found, strict=True):
        for place, row in enumerate(panel):
            _bar(axes, place, row)
        axes.set_yticks(range(len(panel)), [row[0] for row in panel])
        axes.set(title=f"{task}: {split} problems", xlim=(0, 1), ylim=(len(panel) - 0.4, -0.6))
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
    found[-1].set_xlabel("reward")
    return Picture(figure, _CAPTION)


_CAPTION = (
    "Mean reward with its 95 % interval (bootstrap over problems): of each problem's best "
    "trajectory where the name says best, else of one trajectory, which the policy is worth. "
    "Open circles: the best of each problem's trajectories."
)


def _rows(arm: Arm, experiment: Experiment, arms: Sequence[Arm]) -> list[_Row]:
    who = f"{experiment.label}: " if len(arms) > 1 or len(arm.experiments) > 1 else ""
    best = searched(experiment.run)
    teams = [
        (f"{who}{one.words}", colour(arm.number), one, best) for one in evaluations(experiment)
    ]
    others = [(one, by_best(experiment.run, one)) for one in baselines(experiment)]
    return [*teams, *((f"{who}{one.words}", BASELINE, one, top) for one, top in others)]


def _bar(axes: Axes, place: int, row: _Row) -> None:
    """The bar, its interval, the best of a problem's trajectories; both numbers on the right."""
    _, ink, held, best = row
    top = held.measures.best
    shown = top if best else held.measures.reward
    axes.barh(place, shown.mean, height=0.62, color=lighter(ink) if held.update == 0 else ink)
    axes.plot([shown.low, shown.high], [place, place], color=INK, linewidth=1.4)
    if not best:
        axes.plot(
            top.mean, place, "o", markersize=5, color=INK, markerfacecolor="white", clip_on=False
        )
    said = f"{shown.mean:.2f} best" if best else f"{shown.mean:.2f}, best {top.mean:.2f}"
    where = axes.get_yaxis_transform()
    axes.text(1.01, place, said, transform=where, va="center", fontsize=8.5)
