"""docs/tree.svg: the search tree of an episode that was really played.

    python -m tools.tree --write

It replays the recorded run that the tests have (SmolLM2-135M on code_review, 3 samples per state,
beam width 2) and draws the episode that earned most.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

import orchestry
from orchestry.core.config import validate
from orchestry.core.resolve import merge
from orchestry.core.types import NodeId
from orchestry.store.records import EpisodeRecord, NodeRecord
from orchestry.store.run import read_config
from tools import put

ROOT = Path(__file__).resolve().parent.parent
IMAGE = ROOT / "docs" / "tree.svg"
COMMAND = "python -m tools.tree --write"
RECORDING = ROOT / "tests" / "fixtures" / "recorded" / "code_review"
COLUMN, ROW, LEFT, TOP, BOX, HEIGHT = 196, 52, 80, 44, 122, 38
"""Pixels: between stages and rows, margins, and a state's box."""
STYLE = """
  .card { fill: #fcfcfa } .name, .text { fill: #202020 } .note { fill: #565656 }
  .state { fill: #e3f2ef; stroke: #00796b } .pruned { fill: none; stroke: #767676 }
  .edge { stroke: #8a8a8a } .best { stroke: #00796b; stroke-width: 3 }
  text { font: 13px system-ui, sans-serif; text-anchor: middle } .name { font-weight: 600 }
  .note { font-size: 12px } .pruned { stroke-dasharray: 4 3 } .edge, .best { fill: none }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1f2229 } .name, .text { fill: #ececec } .note { fill: #b4b4b4 }
    .state { fill: #15443e; stroke: #4db6ac } .pruned { stroke: #9a9a9a }
    .best { stroke: #4db6ac }
  }
"""


def played() -> EpisodeRecord:
    """The recorded run's best episode, replayed."""
    replay = {"provider": {"name": "recorded", "recording": str(RECORDING)}}
    config = validate(merge(read_config(RECORDING), replay))
    with tempfile.TemporaryDirectory() as folder:
        best = orchestry.train(config, Path(folder) / "run", None).best
    assert best is not None
    return best


def drawn(episode: EpisodeRecord) -> str:
    """The tree as an SVG: a column a stage, a state's samples in one block, best path bold."""
    places = _places(episode)
    width = 2 * LEFT + COLUMN * max(node.place.stage for node in episode.nodes)
    height = max(y for _, y in places.values()) + HEIGHT // 2 + 52
    best = {node.id for node in episode.path(episode.best)}
    edges = [_edge(node, places, node.id in best) for node in episode.nodes if node.parent]
    boxes = [_box(episode, node, places, node.id in best) for node in episode.nodes]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(_title(episode))}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" width="{width}" height="{height}" rx="8"/>',
        *_heads(episode, width, height),
        *sorted(edges, key=lambda edge: 'class="best"' in edge),  # the best path on top
        *boxes,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _places(episode: EpisodeRecord) -> Mapping[str, tuple[int, int]]:
    """Each state's centre, in pixels: one row per leaf, a parent in the middle of its children."""
    children = {
        node.id: [c.id for c in episode.nodes if c.parent == node.id] for node in episode.nodes
    }
    places: dict[str, tuple[int, int]] = {}
    rows = iter(range(len(episode.nodes)))

    def put(id: str) -> int:
        ys = [put(child) for child in children[id]] or [TOP + HEIGHT // 2 + ROW * next(rows)]
        places[id] = (LEFT + COLUMN * NodeId.of(id).stage, sum(ys) // len(ys))
        return places[id][1]

    put("0")
    return places


def _edge(node: NodeRecord, places: Mapping[str, tuple[int, int]], best: bool) -> str:
    assert node.parent is not None
    (x0, y0), (x1, y1) = places[node.parent], places[node.id]
    x0, x1 = x0 + BOX // 2, x1 - BOX // 2
    middle = (x0 + x1) // 2
    kind = "best" if best else "edge"
    return f'<path class="{kind}" d="M{x0} {y0}C{middle} {y0} {middle} {y1} {x1} {y1}"/>'


def _box(
    episode: EpisodeRecord, node: NodeRecord, places: Mapping[str, tuple[int, int]], best: bool
) -> str:
    x, y = places[node.id]
    kind = "state" if node.survived else "pruned"
    width = ' stroke-width="3"' if best else ""
    value, note = _labels(episode, node)
    return (
        f'<rect class="{kind}"{width} x="{x - BOX // 2}" y="{y - HEIGHT // 2}" '
        f'width="{BOX}" height="{HEIGHT}" rx="6"/>'
        f'<text class="text" x="{x}" y="{y - 2}">{value}</text>'
        f'<text class="note" x="{x}" y="{y + 13}">{note}</text>'
    )


def _labels(episode: EpisodeRecord, node: NodeRecord) -> tuple[str, str]:
    """What stands in a state's box: the value that it was compared by, and what came of it."""
    group = next((group for group in episode.groups if node.id in group.children), None)
    if group is None:
        return escape(episode.problem), "the problem"
    place = group.children.index(node.id)
    value, advantage = f"value {group.values[place]:.2f}", group.advantages[place]
    if not node.survived:
        return value, "pruned"
    if len(group.children) == 1:
        return value, "one sample"
    return value, f"advantage {advantage:+.2f}".replace("-", "−")  # noqa: RUF001


def _heads(episode: EpisodeRecord, width: int, height: int) -> Iterator[str]:
    stages = {node.place.stage: node.turns for node in episode.nodes if node.turns}
    for stage, turns in sorted(stages.items()):
        who = " and ".join(turn.agent for turn in turns)
        x = LEFT + COLUMN * stage
        yield f'<text class="name" x="{x}" y="28">{escape(who)}</text>'
    yield f'<text class="note" x="{width // 2}" y="{height - 18}">{escape(_title(episode))}</text>'


def _title(episode: EpisodeRecord) -> str:
    return (
        f"An episode of code_review, problem {episode.problem}: 3 samples per state, beam width 2; "
        f"the best trajectory earned {episode.reward:.2f}"
    )


if __name__ == "__main__":
    put(drawn(played()), IMAGE)
