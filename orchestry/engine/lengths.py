"""How long answers were in earlier runs of a model, and what they were worth.

What a model writes differs most from model to model, then from task to task, so one earlier run
says more than any prior. Nothing but lengths, rewards and ties is taken from it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import comb, sqrt
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestry.core.errors import OrchestryError, StoreError, reason
from orchestry.store import journal
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import read_config

NEWEST, LOOKED_AT, EVENTS, EPISODES = 4, 40, 4000, 20
"""Most runs that are read, run directories whose config is read to find them, and events and
episodes of each run."""
FEWEST = 5
"""Answers, or pairs of siblings, in earlier runs below which something is known from less."""
UNREADABLE = "{} tells the dry run nothing: it can't be read ({})"
KINDS = {"act": "act", "credit": "act", "trial": "act", "judge": "judge", "distil": "distil"}
"""What the answers are like, by the purpose of the call."""


@dataclass(frozen=True, slots=True)
class Length:
    """One answer's tokens, what its text holds, and whether max_tokens cut it there."""

    tokens: int
    size: int
    """Bytes of an agent's text; JSON objects of an answer by a schema."""
    cut: bool


@dataclass(slots=True)
class Measured:
    """What earlier runs say. Empty: nothing is known."""

    runs: int = 0
    lengths: dict[tuple[str, ...], list[Length]] = field(default_factory=lambda: defaultdict(list))
    """By model and kind, whatever the task; by model, kind and agent in runs of the same task."""
    rewards: list[float] = field(default_factory=list)
    """Scores of states of the same task."""
    pairs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """Pairs of siblings in runs of the same task, by the last agent of their moves: those with
    equal scores, and all."""
    gains: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Pairs of teams on dev in runs of the same task, and the sum of their squared gains."""

    @property
    def sd(self) -> float | None:
        """Of such a pair's gain; None where too few were played."""
        pairs, squares = self.gains
        return sqrt(squares / pairs) if pairs >= FEWEST else None

    def add(self, task: str, config: Mapping[str, Any], events: Iterable[journal.Event]) -> bool:
        """Takes one run, which had that config; whether a model answered in it."""
        answered, same, state = False, config["task"] == task, dict[str, Any]()
        for event in events:
            if isinstance(event, journal.Learned):
                state = event.state
            if isinstance(event, journal.Scored) and same:
                self.rewards.append(event.score.total)
            if isinstance(event, journal.Answered) and _given(event):
                said, kind = event.completion, KINDS[event.purpose]
                size = len(said.text.encode()) if kind == "act" else said.text.count("{")
                length = Length(said.output_tokens, max(1, size), said.stop == "length")
                model, answered = model_of(config, event.agent, kind), True
                self.lengths[model, kind].append(length)
                if same:
                    self.lengths[model, kind, event.agent].append(length)
        if same and "squares" in state:
            self.gains = [self.gains[0] + state["pairs"], self.gains[1] + state["squares"]]
        return answered

    def add_siblings(self, episode: EpisodeRecord) -> None:
        """Takes an episode of the same task."""
        scores = {node.id: node.score.total for node in episode.nodes}
        for group in filter(lambda one: one.agents, episode.groups):
            siblings = [scores[child] for child in dict.fromkeys(group.children)]
            pairs = self.pairs[group.agents[-1]]
            pairs[0] += sum(comb(count, 2) for count in Counter(siblings).values())
            pairs[1] += comb(len(siblings), 2)

    def tying(self, agent: str) -> float | None:
        """Share of the agent's siblings that score the same for another reason than chance; None
        where too few were seen. Two of them tie with the square of it."""
        same, pairs = self.pairs[agent]
        if pairs < FEWEST:
            return None
        chance = sum((n / len(self.rewards)) ** 2 for n in Counter(self.rewards).values())
        return sqrt(max(0.0, same / pairs - chance) / (1 - chance)) if chance < 1 else 1.0


def measured(
    folders: Sequence[Path], task: str, models: set[str], note: Callable[[str], None]
) -> Measured:
    """What the newest runs in these folders say of the models; those that can't be read are named
    in a note."""
    found = Measured()
    for path in _newest(folders, note):
        try:
            config = read_config(path.parent)
            roles = [
                ("", "act"),
                ("", "judge"),
                *((role, "act") for role in config.get("agents") or ()),
            ]
            if found.runs < NEWEST and models & {model_of(config, *role) for role in roles}:
                played = _episodes(path.parent) if config["task"] == task else []
                found.runs += found.add(task, config, list(islice(journal.read(path), EVENTS)))
                for episode in played:
                    found.add_siblings(episode)
        except (OSError, OrchestryError, LookupError, TypeError, AttributeError) as error:
            note(UNREADABLE.format(path.parent, error))
    return found


def _newest(folders: Sequence[Path], note: Callable[[str], None]) -> list[Path]:
    """The journals of the newest runs, newest first. Opening a pipe would wait for its writer, so
    only regular files count."""
    written = dict[Path, float]()
    for path in (path for folder in folders for path in folder.glob("*/journal.jsonl")):
        try:
            config = path.with_name("config.yaml")  # a check of a judge has none
            if path.is_file() and config.is_file():
                written[path.resolve()] = path.stat().st_mtime
        except OSError as error:  # the run may vanish meanwhile
            note(UNREADABLE.format(path.parent, error))
    return sorted(written, key=lambda path: (-written[path], path))[:LOOKED_AT]


def _episodes(folder: Path) -> list[EpisodeRecord]:
    """The first whole lines of a run's episodes. Raises StoreError for one that is damaged."""
    path = folder / "episodes.jsonl"
    if not path.is_file():
        return []
    with path.open("rb") as file:
        lines = [line for line in islice(file, EPISODES) if line.endswith(b"\n")]
    try:
        return [EpisodeRecord.model_validate_json(line) for line in lines]
    except ValidationError as error:
        raise StoreError(f"{path} is damaged: {reason(error)}") from None


def model_of(config: Mapping[str, Any], agent: str, kind: str) -> str:
    """The model that a run's config, as plain data, names for an agent, or for the judge."""
    places = {"act": config.get("agents") or {}, "judge": config, "distil": config}
    names = {"act": (agent,), "judge": ("judge",), "distil": ("behaviors", "judge")}[kind]
    asked = [place for name in names if (place := places[kind].get(name))]
    own = [place.get("model") or (place.get("provider") or {}).get("model") for place in asked]
    return str(next(filter(None, own), config["provider"]["model"]))


def _given(event: journal.Answered) -> bool:
    """Whether it is an answer of a kind that is foretold, and not one that stands for none."""
    return event.purpose in KINDS and event.completion.output_tokens > 0
