"""How the reports' tests make runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestry.core.config import RunConfig, validate
from orchestry.core.resolve import merge
from orchestry.core.types import Part, Score
from orchestry.store.records import EpisodeRecord

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"


def config(**changes: Any) -> RunConfig:
    """Three episodes of `words`, answered by seeded filler text."""
    plain: dict[str, Any] = {
        "task": "words",
        "task_path": [str(TASKS)],
        "episodes": 3,
        "provider": {"name": "fake"},
        "cache": {"enabled": False},
    }
    return validate(merge(plain, changes))


def copied(run: Path, place: Path) -> Path:
    """A run's folder, copied to be changed."""
    shutil.copytree(run, place)
    return place


def told(
    run: Path, say: Callable[[int, int], tuple[float, tuple[str, ...]]], schemes: Sequence[str] = ()
) -> Path:
    """Gives each trajectory a reward and tags, by its episode and its place among the leaves, as if
    its task had scored it so; the task's `schemes`, and its tag for solved problems."""
    lines = []
    for line in (run / "episodes.jsonl").read_text().splitlines():
        record = EpisodeRecord.model_validate_json(line)
        places = {leaf.id: place for place, leaf in enumerate(record.leaves())}
        nodes = []
        for node in record.nodes:
            if node.id in places:
                value, tags = say(record.episode, places[node.id])
                part = Part(name="quality", value=value, weight=1.0)
                node = node.model_copy(update={"score": Score(parts=(part,), tags=tags)})
            nodes.append(node)
        found = record.model_copy(update={"nodes": tuple(nodes)})
        best = max(found.leaves(), key=lambda leaf: leaf.score.total)
        rewards = [leaf.score.total for leaf in found.leaves()]
        own = {"best": best.id, "reward": best.score.total, "mean_leaf_reward": fmean(rewards)}
        lines.append(found.model_copy(update=own).model_dump_json() + "\n")
    (run / "episodes.jsonl").write_text("".join(lines))
    summary = json.loads((run / "summary.json").read_bytes())
    changed = {**summary, "schemes": list(schemes), "solved": "solved"}
    (run / "summary.json").write_text(json.dumps(changed))
    return run
