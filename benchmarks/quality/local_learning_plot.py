"""The figure of local_learning: reward by update, learning beside its control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

Curves = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""By task and arm, rewards by update, one row a seed."""
COLOURS = ("#0b6e4f", "#8a8a8a")
"""Of learning and of control; told apart in grey, too."""


def draw(curves: Curves, path: Path) -> None:
    """A panel per task: a thin line per seed, a bold one for their mean (extra `plots`)."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    fixed = {"svg.fonttype": "none", "svg.hashsalt": "orchestry", "font.size": 9}
    with pyplot.rc_context(fixed):
        figure, panels = pyplot.subplots(
            1, len(curves), figsize=(8, 3), sharey=True, squeeze=False, layout="constrained"
        )
        for axes, (task, arms) in zip(panels[0], curves.items(), strict=True):
            for colour, (arm, rows) in zip(COLOURS, arms.items(), strict=True):
                updates = range(1, len(rows[0]) + 1)
                for row in rows:
                    axes.plot(updates, row, color=colour, linewidth=0.7, alpha=0.6)
                means = [fmean(column) for column in zip(*rows, strict=True)]
                axes.plot(updates, means, color=colour, linewidth=2.5, label=arm)
            axes.set(title=task, xlabel="update", ylim=(0, 1))
            axes.grid(alpha=0.25)
        panels[0][0].set_ylabel("mean reward of its trajectories")
        panels[0][0].legend(frameon=False, loc="upper left")
        figure.savefig(path, facecolor="white", metadata={"Date": None})
        pyplot.close(figure)
