"""The figures of how teams worked: kinds of trajectory along a run, and tags early and late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestry.report.arms import Arm
from orchestry.report.curves import Point, axis, points, window
from orchestry.report.kinds import (
    common,
    first_and_last,
    has_schemes,
    shares,
    tag_names,
    tag_shares,
)
from orchestry.report.picture import Picture
from orchestry.report.style import FAINT, WIDTH, colour, kind_colours, lighter
from orchestry.store.records import EpisodeRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_XLABEL = {"updates": "updates taken", "episodes": "episodes"}


def draw_kinds(task: str, arms: Sequence[Arm]) -> Picture | None:
    """A stacked area a run arm; None where no trajectory has a tag."""
    from matplotlib.figure import Figure

    played = [arm for arm in arms if arm.runs]
    runs = [run for arm in played for run in arm.runs]
    if not tag_names(runs):
        return None
    kinds, schemes = common(runs), has_schemes(runs)
    columns = min(2, len(played))
    rows = -(-len(played) // columns)
    figure = Figure(figsize=(WIDTH, 2.5 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for arm, axes in zip(played, panels, strict=False):
        _areas(axes, arm, kinds, schemes=schemes)
        axes.set_title(
            arm.label if len(played) > 1 else f"{task}: trajectories by {_what(schemes)}"
        )
    for axes in panels[len(played) :]:
        axes.set_visible(False)
    handles, texts = panels[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=3)
    smooth = window(runs)
    over = f", the mean of the last {smooth} {axis(runs[0])}" if smooth > 1 else ""
    return Picture(figure, f"Share of evaluated trajectories by {_what(schemes)}{over}.")


def _what(schemes: bool) -> str:
    return "cooperation scheme" if schemes else "tags"


def _areas(axes: Axes, arm: Arm, kinds: Sequence[str], *, schemes: bool) -> None:
    """All seeds of an arm together."""
    smooth = window(arm.runs)
    columns = list(zip(*(points(run, smooth) for run in arm.runs), strict=False))
    at = [shares(_together(column), kinds, schemes=schemes) for column in columns]
    x = [column[0].x for column in columns]
    heights = [[share[kind].share for share in at] for kind in kinds]
    inks = kind_colours(list(kinds))
    if len(x) == 1:  # one point has no area
        x, heights = [x[0] - 0.5, x[0] + 0.5], [row * 2 for row in heights]
    axes.stackplot(
        x,
        heights,
        labels=[kind.replace("_", " ") for kind in kinds],
        colors=[inks[kind] for kind in kinds],
        edgecolor="white",
        linewidth=0.6,
    )
    axes.set(ylim=(0, 1), xlim=(x[0], x[-1]), xlabel=_XLABEL[axis(arm.runs[0])])
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(visible=False)


def _together(column: Sequence[Point]) -> list[EpisodeRecord]:
    return [record for point in column for record in point.episodes]


def draw_tags(task: str, arms: Sequence[Arm]) -> Picture | None:
    """Two bars a tag and arm: in the first quarter of the episodes, and in the last."""
    from matplotlib.figure import Figure

    played = [arm for arm in arms if arm.runs]
    names = tag_names([run for arm in played for run in arm.runs])
    if not names:
        return None
    figure = Figure(figsize=(WIDTH, 0.42 * len(names) + 1.3), layout="constrained")
    panels = figure.subplots(1, len(played), squeeze=False, sharey=True)[0]
    for arm, axes in zip(played, panels, strict=True):
        _pairs(axes, arm, names)
        axes.set_title(arm.label if len(played) > 1 else f"{task}: tags, early and late")
    handles, texts = panels[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=2)
    return Picture(figure, "Share of evaluated trajectories with each tag; one may carry several.")


def _pairs(axes: Axes, arm: Arm, names: Sequence[str]) -> None:
    halves = [first_and_last(run.episodes) for run in arm.runs]
    ink = colour(arm.number)
    for late, (label, fill) in enumerate((("first quarter", lighter(ink)), ("last quarter", ink))):
        records = [record for half in halves for record in half[late]]
        found = tag_shares(records, names)
        places = [number + (late - 0.5) * 0.36 for number in range(len(names))]
        widths = [100 * found[name].share for name in names]
        axes.barh(places, widths, height=0.34, color=fill, label=label)
        for place, width in zip(places, widths, strict=True):
            axes.annotate(
                f"{width:.0f}",
                (width, place),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
                color=FAINT,
            )
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set(xlim=(0, 108), ylim=(len(names) - 0.5, -0.5), xlabel="% of trajectories")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
