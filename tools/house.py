"""docs/architecture.svg: the package's rooms and what they import, read from the code.

    python -m tools.house --write

Rows are the layers of `[tool.importlinter]` in pyproject.toml, so that an arrow that runs up would
break that contract first.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from tools import put

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "orchestry"
IMAGE = ROOT / "docs" / "architecture.svg"
COMMAND = "python -m tools.house --write"
WIDTH, BOX, HEIGHT, ROW, TOP = 900, 240, 58, 104, 20
"""Pixels: the card, a room's box, from row to row, and the margin."""
STYLE = """
  .card { fill: #fcfcfa } .name, .note { fill: #202020 } .note { fill: #565656 }
  .room { fill: #e3f2ef; stroke: #00796b } .edge { stroke: #8a8a8a; fill: none }
  text { font: 12px system-ui, sans-serif; text-anchor: middle }
  .name { font-size: 15px; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1f2229 } .name { fill: #ececec } .note { fill: #b4b4b4 }
    .room { fill: #15443e; stroke: #4db6ac } .edge { stroke: #7a7a7a }
  }
"""


def layers() -> list[list[str]]:
    """The rooms of each layer, from the top."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rows = config["tool"]["importlinter"]["contracts"][0]["layers"]
    named = [[room.strip() for room in row.split("|")] for row in rows]
    return [row for row in named if (PACKAGE / row[0]).is_dir()]


def imports(room: str) -> set[str]:
    """The other rooms that a room's files import, at whatever depth of their code."""
    found = set[str]()
    for path in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                found |= {_room(node.module or "")}
            elif isinstance(node, ast.Import):
                found |= {_room(alias.name) for alias in node.names}
    return found - {room, ""}


def _room(module: str) -> str:
    parts = module.split(".")
    inside = parts[0] == "orchestry" and len(parts) > 1 and (PACKAGE / parts[1]).is_dir()
    return parts[1] if inside else ""


def reduced(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows without those that a longer way already shows (the transitive reduction)."""

    def below(room: str) -> set[str]:
        return arrows[room].union(*map(below, arrows[room]))

    return {room: found.difference(*map(below, found)) for room, found in arrows.items()}


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    said = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_bytes())) or ""
    return said.replace("\n", " ").partition(".")[0]


def drawn(rows: Sequence[Sequence[str]], arrows: Mapping[str, set[str]]) -> str:
    """The rooms as an SVG: a row per layer, a line per arrow."""
    height = 2 * TOP + ROW * (len(rows) - 1) + HEIGHT
    places = {
        room: (WIDTH * (2 * place + 1) // (2 * len(row)), TOP + ROW * number)
        for number, row in enumerate(rows)
        for place, room in enumerate(row)
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The rooms of orchestry: each imports only rooms below it</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" width="{WIDTH}" height="{height}" rx="8"/>',
        *(_edge(places[room], places[to]) for room in places for to in sorted(arrows[room])),
        *(box for room, place in places.items() for box in _box(room, place)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _edge(upper: tuple[int, int], lower: tuple[int, int]) -> str:
    """A curve; where it skips rows, it runs down in the gap between their boxes."""
    (x0, y0), (x1, y1), space = (upper[0], upper[1] + HEIGHT), lower, ROW - HEIGHT
    if y1 - y0 > space:
        gap = WIDTH // 3 if x0 + x1 < WIDTH else 2 * WIDTH // 3
        top, bottom = y0 + space // 2, y1 - space // 2
        down = f"C{x0} {top} {gap} {top} {gap} {y0 + space}L{gap} {y1 - space}"
        path = f"{down}C{gap} {bottom} {x1} {bottom} {x1} {y1}"
    else:
        middle = (y0 + y1) // 2
        path = f"C{x0} {middle} {x1} {middle} {x1} {y1}"
    return f'<path class="edge" d="M{x0} {y0}{path}"/>'


def _box(room: str, place: tuple[int, int]) -> Iterator[str]:
    x, y = place
    yield (
        f'<rect class="room" x="{x - BOX // 2}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="6"/>'
        f'<text class="name" x="{x}" y="{y + 20}">{escape(room)}</text>'
    )
    for number, line in enumerate(_lines(purpose(room))):
        yield f'<text class="note" x="{x}" y="{y + 36 + 14 * number}">{escape(line)}</text>'


def _lines(text: str, most: int = 34) -> list[str]:
    """A text on two lines at most."""
    if len(text) <= most:
        return [text]
    cut = text.rfind(" ", 0, most + 1)
    return [text[:cut], text[cut + 1 :]]


def image() -> str:
    """The picture as the code stands."""
    rows = layers()
    return drawn(rows, reduced({room: imports(room) for row in rows for room in row}))


if __name__ == "__main__":
    put(image(), IMAGE)
