"""The tables of the guides, composed of what was measured before; nothing is measured anew.

    python -m benchmarks.guides           # prints the tables
    python -m benchmarks.guides --write   # puts them into the guides

`times` and `expected` (docs/from-zero-to-results.md) take cells of docs/benchmarks.md; a section
that was written anew needs this command afterwards. `tried` (docs/hyperparameters.md) takes the
settings of the runs in benchmarks/kept, and what the sweep was allowed to try.
"""

from __future__ import annotations

import argparse
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import kept, page
from benchmarks.quality.swept import CONFIG as SWEEP
from benchmarks.stats import columns
from orchestry.core.config import RunConfig
from orchestry.core.resolve import leaves

DOCS = page.PAGE.parent
PAGES = {
    "times": DOCS / "from-zero-to-results.md",
    "expected": DOCS / "from-zero-to-results.md",
    "tried": DOCS / "hyperparameters.md",
}
KEYS = {
    "local": (
        "learn.learning_rate",
        "learn.every",
        "learn.group_size",
        "learn.baseline",
        "learn.credit",
        "learn.top_p",
        "curriculum",
        "sampling.temperature",
        "sampling.max_tokens",
        "episodes",
    ),
    "api": ("search.k_samples", "search.beam_width", "behaviors.every", "behaviors.candidates"),
}
"""What a user tunes, by backend, in the order of the table."""
SMALL = "embedded (135M)"
TESTED = "Test problems, generated"
"""The heading below which sections of cooperation have several figures."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A team before and after learning: where the page has its figures."""

    task: str
    model: str
    section: str
    part: str
    """The heading within the section; '' for all of it."""
    column: str
    before: str
    """Beginning of the row, without the bar in front of it."""
    after: str


GAINS = (
    *(
        Gain(task, f"{SMALL}, {on}", name, task, "test problems", "control", "learning")
        for name, on in (("local_learning", "CPU"), ("local_learning_gpu", "GPU"))
        for task in ("tldr", "code_collaboration")
    ),
    *(
        Gain(
            "code_collaboration, generated",
            f"{model}, {start}",
            section,
            TESTED,
            column,
            "untrained",
            "learned",
        )
        for model, section, start in (
            (SMALL, "cooperation", "warm start"),
            ("Qwen2.5-Coder-0.5B", "coders", "warm start"),
            ("Qwen2.5-Coder-1.5B", "seeds_model", "no warm start"),
        )
        for column in ("reward", "cooperates", "solved (pass@1)")
    ),
    Gain(
        "tldr", f"{SMALL}, prompts", "learning", "", "1 sample", "tldr | library off", "tldr | ours"
    ),
    Gain("house_style", "scripted, prompts", "house_style", "", "", "test before", "test after"),
    Gain("bucket_brigade default", "PPO", "bucket_ppo", "", "", "untrained", "PPO"),
    *(
        Gain(
            f"bucket_brigade {name}",
            f"{SMALL}, taught by PPO",
            "bucket_models",
            "",
            "return",
            f"{name} | as it is |",
            f"{name} | taught by PPO |",
        )
        for name in ("default", "early_containment")
    ),
)
ROWS = {"house_style": "default", "bucket_ppo": "default"}
"""Sections whose tables have before and after in columns, not in rows: the row."""
SPANS = (
    (
        "the first run: a search with the small model, without a key",
        "first",
        r"median \*\*(.+?)\*\*",
    ),
    (
        "`quick_test`: five updates, to see that weights can be trained",
        "first",
        r"quick_test`: \*\*(.+?)\*\*",
    ),
    (
        "from an agent program of your own to a learned team",
        "attached",
        r"learned team: \*\*(.+?)\*\*",
    ),
)
"""What takes how long, the section, and the figure in it."""
RUNS = (
    ("ten updates of tldr on a CPU", "local_learning", "tldr"),
    ("ten updates of code_collaboration on a CPU", "local_learning", "code_collaboration"),
    ("ten updates of tldr on a GPU", "local_learning_gpu", "tldr"),
)
"""Tables by seed with minutes."""


def times(sections: Mapping[str, str]) -> str:
    """How long the steps took when they were measured."""
    rows = []
    for what, name, pattern in SPANS:
        found = re.search(pattern, sections[name])
        rows.append((what, found[1] if found else None, name))
    for what, name, part in RUNS:
        cells = [row[-1] for row in tables(_part(sections[name], part)) if row[0].isdecimal()]
        minutes = [float(cell.split()[0]) for cell in cells]
        ends = dict.fromkeys(f"{end:g}" for end in (min(minutes), max(minutes)))
        rows.append((what, f"{' to '.join(ends)} minutes", name))
    return columns([_row("step", *row) for row in rows], figures=False)


def _row(head: str, what: str, found: str | None, name: str) -> dict[str, str]:
    if found is None:
        raise ValueError(f"section {name} of docs/benchmarks.md has no figure for '{what}'")
    return {head: what, "measured": found, "source": _link(name)}


def expected(sections: Mapping[str, str]) -> str:
    """Rewards before and after learning, on test problems, with the section that has them."""
    rows = []
    for one in GAINS:
        before, after = _pair(_part(sections[one.section], one.part), one)
        rows.append(
            {
                "task": one.task,
                "model": one.model,
                "figure": one.column if one.part == TESTED else "reward or return",
                "before": before,
                "after": after,
                "source": _link(one.section),
            }
        )
    return columns(rows, figures=False)


def _pair(text: str, one: Gain) -> tuple[str, str]:
    """The two cells. Raises ValueError for a table that the section has no more."""
    head = list[str]()
    found = dict[str, str]()
    for row in tables(text):
        if (name := ROWS.get(one.section)) is None:
            if one.column in row:
                head = row
            elif head and len(row) == len(head):
                start = " | ".join(row)
                for side in (one.before, one.after):
                    if start.startswith(side):
                        found.setdefault(side, row[head.index(one.column)])
        elif one.before in row:
            head = row
        elif head and row[0] == name:
            found = {side: row[head.index(side)] for side in (one.before, one.after)}
            break
    if len(found) < 2:
        raise ValueError(f"section {one.section} of docs/benchmarks.md has no {one.before}")
    return found[one.before], found[one.after]


def tables(text: str) -> Iterator[list[str]]:
    """The rows of all tables in a section, each as its cells."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith(("|--", "| --")):
            yield [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]


def _part(section: str, heading: str) -> str:
    """What stands below that heading; all of it for ''."""
    if not heading:
        return section
    return section.split(f"\n### {heading}\n")[1].split("\n### ")[0]


def tried() -> str:
    """Per setting: its default, the values of all kept runs that learned, and their sections."""
    seen: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for section, config in configs():
        backend = str(config["backend"])
        flat = dict(leaves(config))
        for key in KEYS.get(backend, ()):
            seen[backend, key][_text(flat[key])].add(section)
    swept: Mapping[str, Any] = yaml.safe_load(SWEEP.read_text(encoding="utf-8"))["keys"]
    for key, span in swept.items():
        text = (
            f"{span['low']:g} to {span['high']:g}" if "low" in span else ", ".join(map(str, span))
        )
        seen["local", key][f"swept: {text}"].add("swept")
    usual = dict(leaves(RunConfig().model_dump(mode="json", by_alias=True)))
    rows = [
        {
            "key": f"`{key}`",
            "default": _text(usual[key]),
            "tried": ", ".join(sorted(seen[backend, key], key=_size)),
            "where": ", ".join(map(_link, sorted(set().union(*seen[backend, key].values())))),
        }
        for backend, keys in KEYS.items()
        for key in keys
    ]
    return columns(rows, figures=False)


def configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """The section and the config of each kept run that learned something itself."""
    names = {archive.name.split("-")[0] for archive in kept.KEPT.glob("*.tar.xz")}
    for name in sorted(names):
        for archive in sorted(kept.KEPT.glob(f"{name}-*.tar.xz")):
            with tarfile.open(archive) as tar:
                for member in tar:
                    if not member.name.endswith("/config.yaml"):
                        continue
                    file = tar.extractfile(member)
                    config = yaml.safe_load(file.read()) if file else {}
                    if _learned(config):
                        yield name, config


def _learned(config: Mapping[str, Any]) -> bool:
    """Whether a run learned: evaluations and baselines have it switched off."""
    if config.get("split") != "train" or (config.get("recipe") or {}).get("steps"):
        return False
    section = {"local": "learn", "api": "behaviors"}.get(str(config.get("backend")), "")
    return bool((config.get(section) or {}).get("enabled"))


def _text(value: object) -> str:
    """As a config has it."""
    return "null" if value is None else str(value)


def _size(text: str) -> tuple[bool, float, str]:
    """For sorting: plain numbers by size, everything else by its text."""
    try:
        return False, float(text), ""
    except ValueError:
        return True, 0.0, text


def _link(name: str) -> str:
    return page.link(name, name.replace("_", " ")).replace("(#", "(benchmarks.md#")


def put(text: str, name: str, table: str) -> str:
    """A guide's text with that table in its place. Raises ValueError if it has no place for it."""
    marks = f"<!-- {name}: python -m benchmarks.guides --write -->", f"<!-- end of {name} -->"
    before, there, rest = text.partition(marks[0])
    _, ends, after = rest.partition(marks[1])
    if not (there and ends):
        raise ValueError(f"no place for the table {name}: {marks[0]} ... {marks[1]}")
    return f"{before}{marks[0]}\n\n{table}\n\n{marks[1]}{after}"


def composed() -> dict[str, str]:
    """All tables, by name."""
    sections = page.read()
    return {"times": times(sections), "expected": expected(sections), "tried": tried()}


def main() -> None:
    """Prints or writes the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put them into the guides")
    write = parser.parse_args().write
    for name, table in composed().items():
        print(table, end="\n\n")
        if write:
            path: Path = PAGES[name]
            path.write_text(put(path.read_text("utf-8"), name, table), encoding="utf-8")


if __name__ == "__main__":
    main()
