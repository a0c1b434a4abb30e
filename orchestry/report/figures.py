"""All figures of a report: learning curves, comparisons on held-out problems, and how teams worked.

Curves follow the MAGRPO paper (arXiv 2508.04652): a mean, and a band over seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from orchestry.report import neural
from orchestry.report.curves import (
    Curve,
    Point,
    axis,
    common_kinds,
    curve,
    dev_rewards,
    episode_reward,
    first_and_last,
    has_schemes,
    part,
    part_names,
    points,
    reward_name,
    shares,
    tag_names,
    tag_shares,
    window,
)
from orchestry.report.held_out import Held, by_best, of_equal_reward, on_own_task
from orchestry.report.measures import searched
from orchestry.report.runs import Arm, Experiment, by_task
from orchestry.report.style import (
    DASHES,
    FAINT,
    INK,
    WIDTH,
    colour,
    kind_colours,
    lighter,
    look,
    save,
)
from orchestry.report.text import tick
from orchestry.store.records import EpisodeRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Picture:
    """An unsaved figure and its caption."""

    figure: Figure
    caption: str


MOST_PARTS = 8
FEW_POINTS = 12
"""Up to this many points, each gets a dot."""
_SPACE = 0.03
"""Margin of the reward's axis above 1 and below 0."""
_XLABEL = {"updates": "updates taken", "episodes": "episodes"}


def draw_curves(task: str, arms: Sequence[Arm]) -> Picture | None:
    """A large panel for the reward and a small one per part; None without episodes."""
    from matplotlib.figure import Figure

    played = [arm for arm in arms if arm.runs]
    runs = [run for arm in played for run in arm.runs]
    if not runs:
        return None
    names, smooth = part_names(runs)[:MOST_PARTS], window(runs)
    names = names if len(names) > 1 else []
    height = 3.6 + 1.3 * max(0, _panel_rows(len(names)) - 2)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    whole, *parts = _panels(figure, len(names))
    for arm in played:
        _line(whole, arm, curve(arm.runs, episode_reward, smooth), _name(arm, played))
        _dev(whole, arm, played)
        for name, axes in zip(names, parts, strict=True):
            _line(axes, arm, curve(arm.runs, part(name), smooth), None)
    _levels(whole, played)
    said = " or ".join(dict.fromkeys(map(reward_name, runs)))
    whole.set(title=f"{task}: {said}", xlabel=_XLABEL[axis(runs[0])], ylabel=said)
    for name, axes in zip(names, parts, strict=True):
        axes.set_title(name.replace("_", " "), fontsize=9)
    handles, texts = whole.get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=min(4, len(texts)))
    return Picture(figure, caption(played, smooth))


def caption(arms: Sequence[Arm], smooth: int) -> str:
    """Explains the reward, points, band and marks."""
    runs = [run for arm in arms for run in arm.runs]
    unit = axis(runs[0])
    point = f"the mean of the last {smooth} {unit}" if smooth > 1 else f"one of the {unit}"
    several = any(len(arm.runs) > 1 for arm in arms)
    over = "from the lowest to the highest seed"
    alone = "1.96 standard errors over a point's episodes on each side"
    band = over if several else alone
    if several and any(len(arm.runs) == 1 for arm in arms):
        band = f"{over}, and of a single run {alone}"
    found = f"{_of(arms)}. A point is {point}; the band is {band}."
    if any(dev_rewards(run) for run in runs):
        found += " Diamonds: the team on dev problems, all trajectories."
    if any(of_equal_reward(one) for arm in arms for one in arm.experiments):
        found += " Dashed: what baselines earn on the split named."
    return found


def _of(arms: Sequence[Arm]) -> str:
    """Says which trajectories' reward is shown."""
    best = [arm.label for arm in arms if searched(arm.runs[0])]
    if not best:
        return "Reward: the mean over all trajectories"
    if len(best) == len(arms):
        return "Best of k: the reward of each episode's best trajectory"
    return (
        f"Best of k ({', '.join(best)}), of the others the reward, the mean over all trajectories"
    )


def _panel_rows(parts: int) -> int:
    return -(-parts // 2)


def _panels(figure: Figure, parts: int) -> list[Axes]:
    """The reward's panel on the left; the parts' panels in rows of two beside it."""
    if not parts:
        found = [figure.subplots()]
    else:
        grid = figure.add_gridspec(_panel_rows(parts), 4)
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
    """Its name in the legend; a single run is named by its problems."""
    split = arm.runs[0].config.get("split", "train")
    name = arm.label if len(arms) > 1 else f"{split} problems"
    return f"{name}, mean of {len(arm.runs)} seeds" if len(arm.runs) > 1 else name


def _dev(axes: Axes, arm: Arm, arms: Sequence[Arm]) -> None:
    """The team's reward on dev during learning: per update, the mean over the runs."""
    by_run = [dev_rewards(run) for run in arm.runs]
    updates = sorted({update for row in by_run for update in row})
    if not updates:
        return
    rewards = [fmean(row[update] for row in by_run if update in row) for update in updates]
    label = f"{arm.label}, dev problems" if len(arms) > 1 else "dev problems"
    _diamonds(axes, updates, rewards, colour(arm.number), label)


def _diamonds(
    axes: Axes, x: Sequence[int], y: Sequence[float], ink: str, label: str | None
) -> None:
    axes.plot(
        x,
        y,
        color=ink,
        linestyle="none",
        marker="D",
        markersize=6,
        markerfacecolor="white",
        markeredgewidth=1.6,
        zorder=4,
        label=label,
    )


def _levels(axes: Axes, arms: Sequence[Arm]) -> None:
    """One dashed line per baseline: its mean over the runs that have it."""
    found: dict[str, list[float]] = {}
    for experiment in (one for arm in arms for one in arm.experiments):
        for held in of_equal_reward(experiment):
            best = by_best(experiment.run, held)
            level = held.measures.best if best else held.measures.reward
            name = f"{held.name.replace('_', ' ')}, {held.split}{' (best of k)' if best else ''}"
            found.setdefault(name, []).append(level.mean)
    for number, (name, levels) in enumerate(sorted(found.items())):
        dash = (0, DASHES[number % len(DASHES)])
        axes.axhline(fmean(levels), color=INK, linewidth=1.2, linestyle=dash, label=name)


def draw_returns(task: str, arms: Sequence[Arm]) -> Picture | None:
    """Of backend ppo: the return over steps; None before a game has ended."""
    from matplotlib.figure import Figure

    games = neural.by_game(arms)
    if not games:
        return None
    learned = [arm for of_game in games.values() for arm in of_game]
    columns = min(2, len(games))
    rows = -(-len(games) // columns)
    height = 3.6 if rows == 1 else 2.5 * rows + 0.6
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (game, of_game) in zip(panels, games.items(), strict=False):
        for arm in of_game:
            _returns(axes, arm, arm.label if len(learned) > 1 else "games learned from")
        _over_steps(axes, 8 // columns)
        name = ", ".join(filter(None, (task, game)))
        axes.set(title=f"{name}: return", xlabel="environment steps", ylabel="return")
    for axes in panels[len(games) :]:
        axes.set_visible(False)
    if any(neural.curve(arm.learners, neural.EVALUATION) for arm in learned):
        _diamonds(panels[len(games) - 1], [], [], INK, "evaluations")
    _legend(figure, panels)
    return Picture(figure, _returns_said(learned))


def _returns(axes: Axes, arm: Arm, name: str) -> None:
    """An arm's curve, its evaluations and, of a single run, its batches."""
    if found := neural.curve(arm.learners, neural.RETURN):
        _batches(axes, arm)
        seeds = f", mean of {len(arm.learners)} seeds" if len(arm.learners) > 1 else ""
        _line(axes, arm, found, f"{name}{seeds}")
    if tests := neural.curve(arm.learners, neural.EVALUATION):
        _diamonds(axes, tests.x, tests.mean, colour(arm.number), None)


def _legend(figure: Figure, panels: Iterable[Axes]) -> None:
    """Of all panels, below; long names get columns of their own."""
    named = [
        each for axes in panels for each in zip(*axes.get_legend_handles_labels(), strict=True)
    ]
    longest = max(len(str(text)) for _, text in named)
    columns = max(1, min(4, len(named), 110 // (longest + 6)))
    handles, texts = zip(*named, strict=True)
    figure.legend(handles, texts, loc="outside lower center", ncols=columns)


def _returns_said(arms: Sequence[Arm]) -> str:
    """Explains point, band, thin line and marks."""
    several = any(len(arm.learners) > 1 for arm in arms)
    alone = any(len(arm.learners) == 1 for arm in arms)
    over = neural.over([arm.learners for arm in arms])
    found = f"Return of a game, mean over the agents. A point is the mean over the games of {over}"
    found += "; the band goes from the lowest to the highest seed." if several else "."
    if alone and over != "a batch":
        found += " Dots: a single run's batches, one by one."
    if any(neural.curve(arm.learners, neural.EVALUATION) for arm in arms):
        found += " Diamonds: the team in games of their own, which nothing is learned from."
    return found


def _batches(axes: Axes, arm: Arm) -> None:
    """The unsmoothed batches of a single run."""
    if len(arm.learners) == 1:
        found = neural.line(arm.learners[0].batches, neural.RETURN, 1)
        x = neural.thinned([*found])
        ink = lighter(colour(arm.number))
        axes.plot(x, [found[at] for at in x], ".", color=ink, markersize=3, zorder=1)


def _over_steps(axes: Axes, most: int) -> None:
    """Free axes, with at most so many steps named."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
    for one in (axes.xaxis, axes.yaxis):
        one.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.margins(y=0.08)


def draw_training(task: str, arms: Sequence[Arm]) -> Picture | None:
    """Of backend ppo: a small panel per figure that shows how learning went."""
    from matplotlib.figure import Figure

    learned = [arm for arm in arms if arm.learners]
    curves = {
        name: [(arm, neural.curve(arm.learners, name)) for arm in learned]
        for name in neural.FIGURES
    }
    there = {name: found for name, found in curves.items() if any(one for _, one in found)}
    if not there:
        return None
    rows = -(-len(there) // _ABREAST)
    figure = Figure(figsize=(WIDTH, 1.75 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, _ABREAST, squeeze=False, sharex=True).ravel()
    for axes, (name, found) in zip(panels, there.items(), strict=False):
        for arm, one in found:
            _line(axes, arm, one, None)
        _over_steps(axes, 3)
        axes.set_title(neural.FIGURES[name], fontsize=8.5)
        axes.tick_params(labelsize=8)
    for axes in panels[len(there) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(there) - _ABREAST) : len(there)]:  # the lowest of its column
        axes.tick_params(labelbottom=True)
    over = neural.over([arm.learners for arm in learned])
    said = f"How learning went, over steps. A point is the mean over {over}; colours as above."
    return Picture(figure, said)


_ABREAST = 4
"""Small panels of a row."""
BASELINE = "#A8A8A8"
_Row = tuple[str, str, Held, bool]
"""Name, colour, measurement, and whether it uses best trajectories."""


def draw_comparison(task: str, arms: Sequence[Arm]) -> Picture | None:
    """One panel per split, one bar per measurement; None if there are no measurements."""
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
    "Reward with its 95 % interval (bootstrap over problems): the mean over all trajectories. "
    "Where the number says best of k, and at open circles: over each problem's best trajectory."
)


def _rows(arm: Arm, experiment: Experiment, arms: Sequence[Arm]) -> list[_Row]:
    who = f"{experiment.label}: " if len(arms) > 1 or len(arm.experiments) > 1 else ""
    best = searched(experiment.run)
    teams = [
        (f"{who}{one.words}", colour(arm.number), one, best) for one in on_own_task(experiment)
    ]
    others = [(one, by_best(experiment.run, one)) for one in of_equal_reward(experiment)]
    return [*teams, *((f"{who}{one.words}", BASELINE, one, top) for one, top in others)]


def _bar(axes: Axes, place: int, row: _Row) -> None:
    """The bar, its interval, and the best per problem; both numbers on the right."""
    _, ink, held, best = row
    top = held.measures.best
    shown = top if best else held.measures.reward
    axes.barh(place, shown.mean, height=0.62, color=lighter(ink) if held.update == 0 else ink)
    axes.plot([shown.low, shown.high], [place, place], color=INK, linewidth=1.4)
    if not best:
        axes.plot(
            top.mean, place, "o", markersize=5, color=INK, markerfacecolor="white", clip_on=False
        )
    one = "" if best else f"{shown.mean:.2f}, "
    said = f"{one}best of k {top.mean:.2f}"
    where = axes.get_yaxis_transform()
    axes.text(1.01, place, said, transform=where, va="center", fontsize=8.5)


def draw_kinds(task: str, arms: Sequence[Arm]) -> Picture | None:
    """One stacked area per arm; None if no trajectory has a tag."""
    from matplotlib.figure import Figure

    played = [arm for arm in arms if arm.runs]
    runs = [run for arm in played for run in arm.runs]
    if not tag_names(runs):
        return None
    kinds, schemes = common_kinds(runs), has_schemes(runs)
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
    """Two bars per tag and arm: the first quarter of the episodes, and the last."""
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


WAYS: Mapping[str, Callable[[str, Sequence[Arm]], Picture | None]] = {
    "rewards": draw_curves,
    "returns": draw_returns,
    "training": draw_training,
    "comparison": draw_comparison,
    "kinds": draw_kinds,
    "tags": draw_tags,
}
"""The drawing function per figure name."""


@dataclass(frozen=True, slots=True)
class FigureFiles:
    """A figure on disk."""

    way: str
    """One of WAYS."""
    task: str
    caption: str
    paths: tuple[Path, ...]
    """The PNG, and the same as SVG."""


def draw(found: Sequence[Arm], folder: Path) -> list[FigureFiles]:
    """Draws each task's non-empty figures into `folder`."""
    drawn = []
    folder.mkdir(parents=True, exist_ok=True)
    with look():
        for task, of_task in by_task(found).items():
            for way, picture_of in WAYS.items():
                if picture := picture_of(task, of_task):
                    name = f"{way}-{re.sub(r'[^A-Za-z0-9_.-]', '_', task)}"
                    paths = tuple(save(picture.figure, folder, name))
                    drawn.append(FigureFiles(way, task, picture.caption, paths))
    return drawn
