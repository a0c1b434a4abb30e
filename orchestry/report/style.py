"""The style of figures: colours for colour-blind readers, files that depend only on the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestry.core.distribution import install
from orchestry.report.curves import NONE, OTHER, UNNAMED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of runs (Okabe and Ito's palette)."""
KIND_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377")
"""Colours of kinds of trajectories (Tol's bright palette)."""
GREYS = {OTHER: "#999999", NONE: "#DDDDDD", UNNAMED: "#DDDDDD"}
DASHES = ((4, 2), (1, 1.2), (6, 2, 1, 2), (8, 3), (3, 1, 1, 1, 1, 1))
"""Line styles of the baselines, all in grey."""
INK, FAINT = "#333333", "#777777"
WIDTH = 8.6
"""Inches: a README's width at 100 dots per inch."""
_LOOK: Any = {  # matplotlib types each of its keys
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "orchestry",
}


def undrawn() -> str:
    """Why no figure can be drawn (the extra `plots` is missing); '' if it can."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return f"figures are left out without matplotlib: `{install('plots')}` adds it"
    return ""


@contextmanager
def look() -> Iterator[None]:
    """The context for all figures; the user's matplotlib settings are ignored."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_LOOK)
        yield


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes NAME.png and NAME.svg without date or version, so that equal data give equal bytes."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    figure.savefig(paths[0], metadata={"Software": None})
    figure.savefig(paths[1], metadata={"Date": None, "Creator": None})
    return paths


def colour(number: int) -> str:
    """An arm's colour; they repeat from the seventh on."""
    return ARMS[number % len(ARMS)]


def lighter(ink: str, share: float = 0.58) -> str:
    """A lighter colour; unlike a transparent one it hides the grid.

    >>> lighter("#000000", 0.5)
    '#808080'
    """
    channels = (int(ink[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * share):02X}" for c in channels)


def kind_colours(kinds: list[str]) -> dict[str, str]:
    """One colour per kind; grey for `other` and missing tags."""
    named = [kind for kind in kinds if kind not in GREYS]
    return {**GREYS, **{kind: KIND_COLOURS[n % len(KIND_COLOURS)] for n, kind in enumerate(named)}}
