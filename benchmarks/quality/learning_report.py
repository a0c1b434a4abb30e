"""The section of benchmarks.quality.learning: what came out, and what the data say limits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.quality.learning_host import Optimised, calls_of, wall_s
from benchmarks.stats import Rows, Table, crossed, difference, mean, ranged, tabulate
from orchestry.backends.library import IN_RUN, Behavior, Library, read_library
from orchestry.report.text import table
from orchestry.store.records import EpisodeRecord, UsageRecord
from orchestry.store.run import Run

SHORT = 300
"""Characters shown of a prompt."""


@dataclass(frozen=True, slots=True)
class Played:
    """Everything that was played of one task; lists have one entry a seed, in order."""

    task: str
    trained: Sequence[Run]
    optimised: Mapping[str, Sequence[Optimised]]
    """By peer."""
    tested: Mapping[str, list[Run]]
    """By contestant; `off` is the task's own prompts."""

    @property
    def libraries(self) -> list[Library]:
        return [read_library(run.folder / IN_RUN) for run in self.trained]

    @property
    def problems(self) -> int:
        """Of the test split."""
        return len(self.tested["off"][0].episodes)

    def rewards(self, best: bool) -> Table:
        """Of a problem's mean sample, or of its best one, by contestant."""
        return tabulate(dict(self.tested), self.problems, best_sample if best else mean_sample)


@dataclass(frozen=True, slots=True)
class Results:
    """All tasks, and the headroom of code tasks where it was measured."""

    labels: Mapping[str, str]
    """Of the contestants, in order."""
    played: Sequence[Played]
    headroom: Mapping[str, Run]
    samples: int


def mean_sample(episode: EpisodeRecord) -> float:
    """The expected reward at one sample; an episode without a finished trajectory earned none."""
    return fmean([leaf.score.total for leaf in episode.leaves()] or [0.0])


def best_sample(episode: EpisodeRecord) -> float:
    """The reward of the best of its samples."""
    return max((leaf.score.total for leaf in episode.leaves()), default=0.0)


def report(results: Results) -> str:
    """The section's body."""
    blocks = [
        _setting(results),
        _contestants(results),
        *(_verdict(results, played) for played in results.played),
        _headroom(results),
        _learners(results),
        _trials(results),
        _prompts(results),
    ]
    return "\n\n".join(block for block in blocks if block)


def accepted(library: Library) -> list[Behavior]:
    """What stands in the prompts."""
    return [b for b in library.behaviors if b.status == "accepted"]


def tried(library: Library) -> list[Behavior]:
    """What was put on trial."""
    return [b for b in library.behaviors if b.evidence and b.evidence.pairs]


def _setting(results: Results) -> str:
    first, seeds = results.played[0].trained[0], len(results.played[0].trained)
    splits = ", ".join(f"{played.task} {played.problems}" for played in results.played)
    return (
        f"{first.summary.model}, {seeds} seed{'s' * (seeds > 1)}, {results.samples} independent "
        f"samples of each test problem ({splits} problems). The reward at one sample is their "
        f"mean, that of best of {results.samples} their maximum: `{results.labels['off']}` is the "
        "task's own prompts, so its maximum is best-of-n. In brackets are 95 % bootstrap intervals "
        "over seeds and problems, of a gain over the same seeds and problems of "
        f"`{results.labels['off']}`. Learners get the same train and dev problems, model and "
        "reward, and at most as many calls as ours took; nobody is shown the test split. "
        f"{_gold(results)} Contestants share the answers to equal requests, which narrows the "
        f"gains; such an answer counts as a call for each.{_peers(results)}"
    )


def _gold(results: Results) -> str:
    """Who was shown gold answers."""
    shown = any(
        behavior.why.startswith("gold of ")
        for played in results.played
        for library in played.libraries
        for behavior in library.behaviors
    )
    if shown:
        others = "; the others are shown none" if results.played[0].optimised else ""
        return (
            "Ours tries gold answers to train problems as examples, as it does by default where "
            f"the model is too small to write rules{others}."
        )
    return "Nobody is shown gold answers."


def _peers(results: Results) -> str:
    """How the optimisers of others run; '' without any."""
    if not results.played[0].optimised:
        return ""
    return (
        " GEPA and DSPy's optimisers run with their defaults (MIPROv2: as many candidates and "
        "trials as the calls allow); DSPy's examples are plays of train that earned half of the "
        "reward."
    )


def _contestants(results: Results) -> str:
    """One row per task and contestant."""
    rows = []
    for played in results.played:
        one, best = played.rewards(best=False), played.rewards(best=True)
        for name, label in results.labels.items():
            calls = ranged(_training_calls(played, name), ".0f") if name != "off" else "0"
            figures = (
                text
                for rewards in (one, best)
                for text in (str(crossed(rewards[name])), _gain(rewards, name))
            )
            rows.append([played.task, label, calls, *figures])
    header = ["task", "prompts", "training calls", "1 sample", "gain"]
    return table([*header, f"best of {results.samples}", "gain"], rows)


def _training_calls(played: Played, name: str) -> list[float]:
    """Of a learner, by seed."""
    if name == "ours":
        return [float(calls_of(run.summary.usage)) for run in played.trained]
    return [float(calls_of(found.usage)) for found in played.optimised[name]]


def _gain(rewards: Table, name: str) -> str:
    return "" if name == "off" else str(crossed(gains(rewards, name)))


def gains(rewards: Table, name: str) -> Rows:
    """Of a contestant over the task's own prompts, by problem and seed."""
    return difference(rewards[name], rewards["off"])


def _verdict(results: Results, played: Played) -> str:
    """What the intervals allow to say of a task at one sample."""
    rewards = played.rewards(best=False)
    found = {name: crossed(gains(rewards, name)) for name in results.labels if name != "off"}
    said = {
        "gained": [name for name, gain in found.items() if gain.low > 0],
        "lost": [name for name, gain in found.items() if gain.high < 0],
        "showed no difference": [n for n, gain in found.items() if gain.low <= 0 <= gain.high],
    }
    parts = [
        f"{verb}: {', '.join(results.labels[name] for name in names)}"
        for verb, names in said.items()
        if names
    ]
    means = {name: mean(rewards[name]) for name in results.labels}
    best = max(means, key=lambda name: means[name])  # a tie goes to the first, which is `off`
    whose = "No mean is above that of" if best == "off" else "The best mean is that of"
    return (
        f"On {played.task}, at one sample, against `{results.labels['off']}`: {'; '.join(parts)}. "
        f"{whose} {results.labels[best]}."
    )


def _headroom(results: Results) -> str:
    """Why this code task: the distance from the mean sample to the best of k, and to 1."""
    if not results.headroom:
        return ""
    rows = []
    for task, run in results.headroom.items():
        one, best = (
            tabulate({"dev": [run]}, len(run.episodes), figure)["dev"]
            for figure in (mean_sample, best_sample)
        )
        tie = fmean(float(mean_sample(e) == best_sample(e)) for e in run.episodes)
        rows.append([task, str(crossed(one)), str(crossed(best)), f"{tie:.0%}"])
    header = ["task", "1 sample", f"best of {results.samples}", "problems whose samples all tie"]
    return (
        "Headroom of the code tasks, their own prompts on dev (a problem whose samples all earn "
        f"the same teaches nothing):\n\n{table(header, rows)}"
    )


def _learners(results: Results) -> str:
    """What each learner spent, and what it came to."""
    rows = []
    for played in results.played:
        for seed, run in enumerate(played.trained):
            ours = _came_to(played.libraries[seed])
            who = [played.task, str(seed)]
            rows.append([*who, "ours", *_spent(run.summary.usage, wall_s(run.events)), ours])
            for name, found in played.optimised.items():
                one = found[seed]
                spent = _spent(one.usage, one.seconds)
                rows.append([*who, results.labels[name], *spent, _kept(one)])
    header = ["task", "seed", "learner", "calls", "of these", "minutes", "came to"]
    return (
        "A learner's calls are the answers that it asked for, those that an earlier run had left "
        "in the cache included; a request repeated within a run is one call. A peer whose calls "
        "are spent is refused further ones, which earn 0, and its best candidate so far is taken. "
        f"Minutes are those of a shared machine.\n\n{table(header, rows, figures=False)}"
    )


def _came_to(library: Library) -> str:
    count = Counter(b.status for b in library.behaviors)
    return (
        f"{len(library.behaviors)} behaviours distilled, {len(tried(library))} tried, "
        f"{count['accepted']} accepted"
    )


def _kept(found: Optimised) -> str:
    too_long = f", {found.refused} prompts longer than the context" * bool(found.refused)
    return (
        f"{len(found.kept) - 1} candidates evaluated, best on dev {found.winner.dev:.3f} from "
        f"{found.kept[0].dev:.3f}{too_long}"
    )


def _spent(usage: Sequence[UsageRecord], seconds: float) -> list[str]:
    by_purpose = ", ".join(f"{purpose} {n}" for purpose, n in _by_purpose(usage).items())
    return [str(calls_of(usage)), by_purpose, f"{seconds / 60:.1f}"]


def _by_purpose(usage: Iterable[UsageRecord]) -> Counter[str]:
    count = Counter[str]()
    for row in usage:
        count[row.purpose] += calls_of([row])
    return count


def _trials(results: Results) -> str:
    """Every behaviour that raced, and what came of it."""
    rows = [
        [
            played.task,
            str(seed),
            b.agent,
            b.kind,
            str(b.evidence),
            f"{b.status}{': ' * bool(b.note)}{b.note}",
        ]
        for played in results.played
        for seed, library in enumerate(played.libraries)
        for b in tried(library)
    ]
    header = ["task", "seed", "agent", "kind", "lift on dev", "verdict"]
    return table(header, rows, figures=False) if rows else "No behaviour was tried."


def _prompts(results: Results) -> str:
    """What was accepted, and the peers' best prompts where they differ from the first."""
    lines = []
    for played in results.played:
        for seed, library in enumerate(played.libraries):
            lines += [
                f"- {played.task}, seed {seed}, ours, for the {b.agent}: {_short(b.text)}"
                for b in accepted(library)
            ]
            for name, found in played.optimised.items():
                where = f"- {played.task}, seed {seed}, {results.labels[name]}"
                lines += [
                    f"{where}, for the {role}: {_short(text)}"
                    for role, text in found[seed].winner.prompts.items()
                    if text != found[seed].kept[0].prompts[role]
                ]
    if not lines:
        return "No learner changed a prompt."
    return "The prompts that were changed; all others are the task's own.\n\n" + "\n".join(lines)


def _short(text: str) -> str:
    """On one line, as code."""
    line = " ".join(text.replace("`", "'").split())
    return f"`{line[:SHORT]}{'...' * (len(line) > SHORT)}`" if line else "(an empty prompt)"
