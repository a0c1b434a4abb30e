"""A page's data: an index of its runs, their episodes' trees, and the lines of all texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestry.core.thoughts import kind_of
from orchestry.report.held_out import in_words
from orchestry.report.page.entry import Kind, PageRun, entry
from orchestry.report.page.steps import compared
from orchestry.report.page.texts import LineTable, embedded, numbered
from orchestry.report.runs import Experiment, Salvaged, arms
from orchestry.store.records import UNMEASURED, EpisodeRecord

CAP = 40_000_000
"""Bytes of trees and texts."""


def page_data(experiments: Sequence[Experiment], cap: int = CAP) -> dict[str, str]:
    """All runs' figures, and as many episodes' trees as `cap` allows: JSON by element id."""
    sources = list(sources_of(experiments))
    entries = [entry(source) for source in sources]
    lines, trees, left = LineTable(), dict[str, str](), cap
    for number, record in _in_turn(sources):
        tree, cost = _tree(record, lines, left)
        if tree:
            trees[f"episode-{number}-{record.episode}"], left = tree, left - cost
    for number, one in enumerate(entries):
        for row in one["rows"]:
            row["kept"] = f"episode-{number}-{row['episode']}" in trees
    index = {"cap": cap, "runs": entries, "arms": compared(arms(experiments))}
    blocks = {"index": embedded(index), "lines": embedded(lines.all)}
    return blocks | dict(sorted(trees.items()))


def sources_of(experiments: Sequence[Experiment]) -> Iterator[PageRun]:
    """Each run, then its evaluations and its baselines."""
    number = 0
    for experiment in experiments:
        beside = bool(experiment.evaluations or experiment.baselines)
        yield PageRun(experiment.label, experiment.run, beside, missing=experiment.missing)
        of, number = number, number + 1
        kinds: dict[Kind, Mapping[str, Salvaged]] = {
            "evaluation": experiment.evaluations,
            "baseline": experiment.baselines,
        }
        for kind, runs in kinds.items():
            for name, run in runs.items():
                yield PageRun(in_words(name, run), run, True, kind, of)
                number += 1


def _in_turn(sources: Sequence[PageRun]) -> Iterator[tuple[int, EpisodeRecord]]:
    """Episodes by priority: the runs take turns, each starting with its most informative ones."""
    ranked = [
        (rank, number, record)
        for number, source in enumerate(sources)
        for rank, record in enumerate(telling(source.run.episodes))
    ]
    for _, number, record in sorted(ranked, key=lambda each: each[:2]):
        yield number, record


def telling(records: Sequence[EpisodeRecord]) -> list[EpisodeRecord]:
    """The best episode, the first and the last, then evenly spread ones."""
    if not records:
        return []
    best = max(records, key=lambda record: (record.reward, -record.episode))
    bits = len(records).bit_length()
    spread = sorted(range(len(records)), key=lambda place: f"{place:0{bits}b}"[::-1])
    order = [best, records[0], records[-1], *(records[place] for place in spread)]
    return list({record.episode: record for record in order}.values())


def _tree(record: EpisodeRecord, lines: LineTable, left: int) -> tuple[str, int]:
    """An episode's JSON and its bytes, new lines included; '' if they are more than `left`."""
    before = len(lines.all)
    tree = embedded(numbered(tree_data(record), lines))
    cost = len(tree.encode("utf-8")) + len(embedded(lines.all[before:]).encode("utf-8"))
    if cost > left:
        lines.cut(before)
        return "", 0
    return tree, cost


def tree_data(record: EpisodeRecord) -> dict[str, Any]:
    """An episode's tree as plain data, without token ids, log-probabilities and the tools of a
    program, which are not shown."""
    plain: dict[str, Any] = record.model_dump(mode="json", exclude_defaults=True)
    if not (record.credits or record.failed):
        plain["unmeasured"] = UNMEASURED
    plain["seed"] = str(record.seed)  # too large for a JavaScript number
    for node in plain["nodes"]:
        for turn in node["turns"]:
            said = turn["completion"]
            turn.pop("tools", None)
            for one in (said, *(step["said"] for step in said.get("steps", ()))):
                one.pop("tokens", None)
            if kind := kind_of(turn["messages"][-1]["content"] if turn["messages"] else ""):
                turn["kind"] = kind
    return plain
