"""The section of benchmarks.quality.learning: what came out, and what the data say limits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.quality.learning_host import Optimised, calls_of, wall_s
from benchmarks.stats import Rows, Table, bounds, difference, interval, mean, tabulate
from orchestry.backends.api.library import IN_RUN, Behavior, Library, read_library
from orchestry.report.text import table
from orchestry.store.records import UsageRecord
from orchestry.store.run import Run

PAIRS = (("on", "off"), ("on", "best_of_n"), ("on", "gepa"), ("gepa", "off"))
SHORT = 300
"""Characters shown of a prompt."""


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that was played; lists have one entry a seed, in order."""

    labels: Mapping[str, str]
    trained: Sequence[Run]
    optimised: Sequence[Optimised]
    tested: Mapping[str, list[Run]]
    max_tokens: int

    @property
    def libraries(self) -> list[Library]:
        return [read_library(run.folder / IN_RUN) for run in self.trained]

    @property
    def problems(self) -> int:
        return len(self.tested["off"][0].episodes)

    def same(self, seed: int) -> bool:
        """Whether the library changed no prompt."""
        return not accepted(self.libraries[seed])


def report(results: Results) -> str:
    """The section's body."""
    runs, problems = dict(results.tested), results.problems
    reward = tabulate(runs, problems, lambda e: e.reward)
    solved = tabulate(runs, problems, lambda e: float("solved" in e.best_node.score.tags))
    calls = tabulate(runs, problems, lambda e: float(e.calls))
    blocks = [
        _setting(results),
        _arms(results.labels, calls, reward, solved),
        _differences(results.labels, reward, solved),
        _verdict(results, reward),
        _learners(results),
        _trials(results),
        _prompts(results),
        _limits(results, reward),
    ]
    return "\n\n".join(block for block in blocks if block)


def accepted(library: Library) -> list[Behavior]:
    """What stands in the prompts."""
    return [b for b in library.behaviors if b.status == "accepted"]


def tried(library: Library) -> list[Behavior]:
    """What was put on trial."""
    return [b for b in library.behaviors if b.evidence and b.evidence.pairs]


def _setting(results: Results) -> str:
    seeds, model = len(results.trained), results.trained[0].summary.model
    return (
        f"{results.problems} problems of code_review's test split, {seeds} "
        f"seed{'s' * (seeds > 1)}, {model}, at most {results.max_tokens} tokens per answer of the "
        "team. The reward is that of the best trajectory found, executed tests decide which; mean "
        "and 95 % bootstrap interval over problems, each with all its seeds. Arms of one seed "
        "share the answers to equal requests, which narrows the differences; such an answer "
        "counts as a call for each arm."
    )


def _arms(labels: Mapping[str, str], calls: Table, reward: Table, solved: Table) -> str:
    rows = [
        [label, f"{mean(calls[arm]):.1f}", interval(reward[arm]), interval(solved[arm])]
        for arm, label in labels.items()
    ]
    return table(["arm", "calls per problem", "reward", "solved"], rows)


def _differences(labels: Mapping[str, str], reward: Table, solved: Table) -> str:
    rows = []
    for one, other in PAIRS:
        apart = (interval(difference(arms[one], arms[other])) for arms in (reward, solved))
        rows.append([f"{labels[one]}, less {labels[other]}", *apart])
    return table(["paired difference", "reward", "solved"], rows)


def _verdict(results: Results, reward: Table) -> str:
    """What the intervals allow to say."""
    said = []
    if all(results.same(seed) for seed in range(len(results.trained))):
        said.append(
            "No behaviour was accepted with any seed, so the prompts with the library are those "
            "without it, and `library on` equals `library off` answer by answer: a null result."
        )
    else:
        said.append(_compared("the library", "the prompts without it", reward["on"], reward["off"]))
    others = (
        ("the library with the beam", "best of n at equal calls", "on", "best_of_n"),
        ("the library", "GEPA's prompts", "on", "gepa"),
        ("GEPA's prompts", "the prompts it started from", "gepa", "off"),
    )
    said += [_compared(a, b, reward[one], reward[other]) for a, b, one, other in others]
    return " ".join(said)


def _compared(one: str, other: str, first: Rows, second: Rows) -> str:
    low, high = bounds(difference(first, second))
    if low > 0:
        return f"{one[0].upper()}{one[1:]} earned more than {other}."
    if high < 0:
        return f"{one[0].upper()}{one[1:]} earned less than {other}."
    return f"This does not tell {one} from {other}."


def _learners(results: Results) -> str:
    """What each learner spent, and what it came to."""
    rows = []
    for seed, (run, other) in enumerate(zip(results.trained, results.optimised, strict=True)):
        library = results.libraries[seed]
        count = Counter(b.status for b in library.behaviors)
        ours = (
            f"{len(library.behaviors)} behaviours distilled, {len(tried(library))} tried, "
            f"{count['accepted']} accepted"
        )
        rows.append(_spent(seed, "library", run.summary.usage, wall_s(run.events), ours))
        theirs = (
            f"{_by_purpose(other.usage)['reflect']} prompts proposed, {len(other.kept) - 1} kept, "
            f"best on dev {other.winner.dev:.3f} from {other.kept[0].dev:.3f}"
            f"{f', {other.refused} prompts longer than the context' * bool(other.refused)}"
        )
        rows.append(_spent(seed, "GEPA", other.usage, other.seconds, theirs))
    header = ["seed", "learner", "calls", "of these", "minutes", "came to"]
    return (
        "A learner's calls are the answers that it asked for, those that an earlier run had left "
        "in the cache included; a request repeated within a run is one call. GEPA stops at the "
        "first iteration that ends with at least as many calls as ours took.\n\n"
        f"{table(header, rows, figures=False)}"
    )


def _spent(
    seed: int, who: str, usage: Sequence[UsageRecord], seconds: float, came_to: str
) -> list[str]:
    by_purpose = ", ".join(f"{purpose} {n}" for purpose, n in _by_purpose(usage).items())
    return [str(seed), who, str(calls_of(usage)), by_purpose, f"{seconds / 60:.1f}", came_to]


def _by_purpose(usage: Iterable[UsageRecord]) -> Counter[str]:
    count = Counter[str]()
    for row in usage:
        count[row.purpose] += calls_of([row])
    return count


def _trials(results: Results) -> str:
    """Every behaviour that raced, and what came of it."""
    rows = [
        [str(seed), b.agent, b.kind, str(b.evidence), f"{b.status}{': ' * bool(b.note)}{b.note}"]
        for seed, library in enumerate(results.libraries)
        for b in tried(library)
    ]
    header = ["seed", "agent", "kind", "lift on dev", "verdict"]
    return table(header, rows, figures=False) if rows else "No behaviour was tried."


def _prompts(results: Results) -> str:
    """What was accepted, and GEPA's best prompts where they differ from the first."""
    lines = []
    for seed, (library, other) in enumerate(zip(results.libraries, results.optimised, strict=True)):
        lines += [
            f"- Seed {seed}, accepted for the {b.agent}: {_short(b.text)}"
            for b in accepted(library)
        ]
        first = other.kept[0].prompts
        changed = {r: text for r, text in other.winner.prompts.items() if text != first[r]}
        lines += [f"- Seed {seed}, GEPA for the {r}: {_short(text)}" for r, text in changed.items()]
        if not changed:
            lines.append(f"- Seed {seed}: GEPA's best prompts are the ones it started from.")
    return "\n".join(lines)


def _short(text: str) -> str:
    """On one line, as code."""
    line = " ".join(text.replace("`", "'").split())
    return f"`{line[:SHORT]}{'...' * (len(line) > SHORT)}`" if line else "(an empty prompt)"


def _limits(results: Results, reward: Table) -> str:
    """What keeps the result from saying more, in figures of this run."""
    trials = [b for library in results.libraries for b in tried(library)]
    made = sum(len(library.behaviors) for library in results.libraries)
    won = sum(len(accepted(library)) for library in results.libraries)
    said = [f"What limits it: of {made} behaviours distilled, {len(trials)} were put on trial"]
    evidence = [b.evidence for b in trials if b.evidence]
    if evidence:
        pairs = [e.pairs for e in evidence]
        margin = min(e.lift - e.low for e in evidence)
        said.append(
            f" and {won} accepted; a trial got {min(pairs)} to {max(pairs)} pairs, and the "
            f"tightest interval began {100 * margin:.0f} points below its lift, so no gain smaller "
            "than that could be shown"
        )
    low, high = bounds(difference(reward["gepa"], reward["off"]))
    return (
        "".join(said)
        + f"; on test, the interval of GEPA's gain is {100 * (high - low):.0f} points wide; and "
        f"the intervals, over problems, leave out how a learner's runs differ, of which there are "
        f"{len(results.trained)}. Who writes the behaviours and the prompts is a "
        "model of 135 million parameters."
    )
