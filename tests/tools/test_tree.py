"""docs/tree.svg is the tree of an episode that was really played."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tools.tree import COMMAND, IMAGE, drawn, played

SVG = "{http://www.w3.org/2000/svg}"


def test_the_image_is_the_replayed_episode() -> None:
    assert IMAGE.read_text(encoding="utf-8") == drawn(played()), (
        f"docs/tree.svg is not the recorded run's tree: run `{COMMAND}` and commit the file"
    )


def test_every_state_has_a_box_and_the_best_path_is_bold() -> None:
    episode = played()
    image = ET.fromstring(drawn(episode))
    boxes = [box for box in image.iter(f"{SVG}rect") if box.get("class") in ("state", "pruned")]
    assert len(boxes) == len(episode.nodes)
    pruned = [box for box in boxes if box.get("class") == "pruned"]
    assert len(pruned) == sum(not node.survived for node in episode.nodes) == 1
    bold = [edge for edge in image.iter(f"{SVG}path") if edge.get("class") == "best"]
    assert len(bold) == len(episode.path(episode.best)) == 3
