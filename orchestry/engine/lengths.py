"""How long answers were in earlier runs of a model, and what they were worth: read from journals.

What a model writes differs most from model to model, then from task to task, so one earlier run
says more than any prior. Nothing but lengths and rewards is taken from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from orchestry.core.errors import OrchestryError
from orchestry.store import journal
from orchestry.store.run import read_config

NEWEST = 4
"""Most earlier runs that are read."""
LOOKED_AT = 40
"""Most run directories whose config is read to find them."""
EVENTS = 4000
"""Most events read of one journal, from its beginning."""
FEWEST = 5
"""Answers of an agent below which those of the whole team say more."""
PURPOSES = ("act", "credit", "trial")
"""Calls of the agents themselves, whose prompts are of one kind."""


@dataclass(frozen=True, slots=True)
class Length:
    """One answer's tokens, the bytes of its text, and whether max_tokens cut it there."""

    tokens: int
    size: int
    cut: bool


@dataclass(slots=True)
class Measured:
    """What earlier runs say. Empty: nothing is known."""

    runs: int = 0
    own: defaultdict[tuple[str, str], list[Length]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By model and agent, in runs of the same task."""
    any: defaultdict[str, list[Length]] = field(default_factory=lambda: defaultdict(list))
    """By model, whatever the task."""
    rewards: list[float] = field(default_factory=list)
    """Scores of states of the same task."""

    def add(self, task: str, config: Mapping[str, Any], events: Iterable[journal.Event]) -> None:
        """Takes one run, which had that config."""
        before = sum(map(len, self.any.values()))
        for event in events:
            if isinstance(event, journal.Scored) and config["task"] == task:
                self.rewards.append(event.score.total)
            if isinstance(event, journal.Answered) and _wrote(event):
                said, model = event.completion, model_of(config, event.agent)
                length = Length(said.output_tokens, len(said.text.encode()), said.stop == "length")
                self.any[model].append(length)
                if config["task"] == task:
                    self.own[model, event.agent].append(length)
        self.runs += sum(map(len, self.any.values())) > before


def measured(
    folders: Sequence[Path], task: str, models: set[str], note: Callable[[str], None]
) -> Measured:
    """What the newest runs in these folders say of the models; those that can't be read are named
    in a note."""
    found, journals = Measured(), dict[Path, float]()
    for path in (path for folder in folders for path in folder.glob("*/journal.jsonl")):
        journals[path.resolve()] = path.stat().st_mtime
    newest = sorted(journals, key=lambda path: (-journals[path], path))
    for path in newest[:LOOKED_AT]:
        if found.runs == NEWEST:
            break
        try:
            config = read_config(path.parent)
            asked = {model_of(config, role) for role in ("", *config.get("agents", {}))}
            if asked & models:
                found.add(task, config, list(islice(journal.read(path), EVENTS)))
        except (OrchestryError, KeyError, TypeError, AttributeError) as error:
            note(f"{path.parent} tells the dry run nothing: it can't be read ({error})")
    return found


def model_of(config: Mapping[str, Any], role: str) -> str:
    """The model that a run's config, as plain data, names for an agent."""
    own = config.get("agents", {}).get(role) or {}
    return str(own.get("model") or config["provider"]["model"])


def _wrote(event: journal.Answered) -> bool:
    """Whether it is an agent's own answer, and one that a model gave."""
    if event.purpose not in PURPOSES or not event.completion.output_tokens:
        return False
    return event.source in ("provider", "cache", "weights")
