"""Writes RESULTS.md with figures, summary.txt and page: the runs' settings and results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.core.errors import StoreError
from orchestry.core.files import write_atomic
from orchestry.core.resolve import leaves
from orchestry.report import neural, page, tables
from orchestry.report.criteria import criteria_table
from orchestry.report.curves import axis, tag_names, window
from orchestry.report.examples import new_ways, trajectories
from orchestry.report.facts import facts, summary_text
from orchestry.report.figures import FigureFiles, draw
from orchestry.report.ground import grounds, said
from orchestry.report.headline import summary
from orchestry.report.held_out import Held, baselines, held_evaluations
from orchestry.report.lessons import lessons
from orchestry.report.measures import REWARD, measure
from orchestry.report.paper import differences
from orchestry.report.runs import Arm, Experiment, arms, by_task
from orchestry.report.style import undrawn
from orchestry.report.tables import by_agent, costs, fault_counts
from orchestry.report.text import bullets, fenced, inline, table
from orchestry.store.checkpoints import DISTILLED
from orchestry.store.journal import Opened

_COMPARED = (
    "Rewards are in [0, 1], in brackets the 95 % interval of the mean (bootstrap over problems). "
    "Reward is the mean over all trajectories, best of k the mean over each problem's best. "
    "A difference is paired by problem: of best of k where the team searches or is compared with "
    "best of n, else of reward. Where its interval covers 0, no "
    "difference is shown."
)
_PAID = "USD counts cached answers as they would cost."
_ALONE = (
    "Baseline `single` is scored without what only a team can earn, so the lead over it is in {by}."
)
_COUNTED = (
    "These sentences follow from the figures. A figure rose or fell if its 95 % interval excludes "
    "0; each has an interval of its own, so of twenty that did not move one may seem to."
)
_TAUGHT = (
    "A group is the samples of one state; where all have the same value, its advantages are "
    "zero and nothing is learned from it."
)


def results(
    experiments: Sequence[Experiment],
    drawn: Sequence[FigureFiles],
    command: str,
    undrawn: str = "",
    stages: str = "",
    checked: bool = False,
) -> str:
    """The whole document. `command` wrote it; `undrawn` says why there are no figures; `stages` is
    the table of a recipe's stages; `checked`: with the criteria of success."""
    found = list(by_task(arms(experiments)).items())
    labels = [experiment.label for experiment in experiments]
    learners = [one for one in experiments if one.run.neural]
    writers = [one for one in experiments if not one.run.neural]
    sections = {
        "Summary": _summary(experiments),
        **({"Stages": stages} if stages else {}),
        **({"Criteria of success": criteria_table(experiments)} if checked else {}),
        "What worked and what did not": _lessons(experiments),
        "Configuration": tables.side_by_side(labels, [setup(one) for one in experiments]),
        "Learning curves": _by_task(found, _curves, drawn, "rewards", "returns", "training"),
        **(_of_policies(learners) if learners else {}),
        **(_of_texts(writers, drawn) if writers else {}),
        **(
            {"What differs from the paper": differs}
            if (differs := differences(experiments))
            else {}
        ),
        "Cost": _cost(experiments, labels),
        "What failed": _failed(experiments, labels),
        "How to make this again": _again(experiments, command),
    }
    body = "\n\n".join(f"## {name}\n\n{text}" for name, text in sections.items())
    title = inline(", ".join(task for task, _ in found))
    lacking = f" {undrawn[0].upper()}{undrawn[1:]}." if undrawn else ""
    return f"# Results: {title}\n\nWritten by `{_plain(command)}`.{lacking}\n\n{body}\n"


def _of_policies(learners: Sequence[Experiment]) -> dict[str, str]:
    """Sections on runs of backend ppo."""
    played = neural.measured(learners)
    return {
        **({"Evaluation in new games": played} if played else {}),
        "Last figures": neural.ends(learners),
        "Checkpoints": neural.checkpoints(learners),
    }


def _of_texts(writers: Sequence[Experiment], drawn: Sequence[FigureFiles]) -> dict[str, str]:
    """Sections on runs whose agents write."""
    found = list(by_task(arms(writers)).items())
    new = [*filter(None, map(new_ways, writers))]
    return {
        "Evaluation on held-out problems": _evaluation(writers, drawn),
        "Baselines": _baselines(writers),
        "How the teams worked": _by_task(found, _kinds, drawn, "kinds", "tags"),
        **({"New ways of working together": "\n\n".join(new)} if new else {}),
        "Example trajectories": "\n\n".join(map(trajectories, writers)),
    }


def _summary(experiments: Sequence[Experiment]) -> str:
    said = summary(experiments)
    glance = tables.side_by_side([one.label for one in experiments], [*map(facts, experiments)])
    return "\n\n".join([*_listed(said), glance])


def _listed(said: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Lists of sentences, each under its name if there are several."""
    for name, sentences in said:
        head = f"**{inline(name)}**\n\n" if len(said) > 1 else ""
        yield head + bullets(inline(sentence, longest=1000) for sentence in sentences)


def _lessons(experiments: Sequence[Experiment]) -> str:
    found = [(one.label, lessons(one)) for one in experiments]
    return "\n\n".join([_COUNTED, *_listed(found)])


_Section = Callable[[Sequence[Arm]], str]
_Tasks = Sequence[tuple[str, Sequence[Arm]]]


def _by_task(found: _Tasks, text: _Section, drawn: Sequence[FigureFiles], *ways: str) -> str:
    """Each task's figures and text, under its name if there are several."""
    pieces = []
    for task, of_task in found:
        if len(found) > 1:
            pieces.append(f"### {inline(task)}")
        pieces += _figures([one for one in drawn if one.task == task], *ways)
        pieces.append(text(of_task))
    return "\n\n".join(pieces)


def _figures(drawn: Sequence[FigureFiles], *ways: str) -> Iterator[str]:
    for one in drawn:
        if one.way in ways:
            png, svg = (f"{path.parent.name}/{path.name}" for path in one.paths)
            image = f"![{inline(one.task)}: {one.way}]({png})"
            yield f"{image}\n\n{inline(one.caption, longest=2000)} ([SVG]({svg}))"


def _curves(of_task: Sequence[Arm]) -> str:
    played = [arm for arm in of_task if arm.runs]
    learned = [arm for arm in of_task if arm.learners]
    if not played and not learned:
        return "There is no curve yet: no episode has finished, and no batch of games."
    texts = [_rewards(played)] if played else []
    return "\n\n".join([*texts, *([_returns(learned)] if learned else [])])


def _returns(learned: Sequence[Arm]) -> str:
    """Of backend ppo."""
    over = neural.over([arm.learners for arm in learned])
    return (
        f"Return of a game, mean over the agents; a point is the mean over the games of {over}. "
        "Evaluations are games of their own, which nothing is learned from.\n\n"
        f"{neural.points(learned)}\n\n"
        f"What learning was like:\n\n{neural.figures(learned)}"
    )


def _rewards(played: Sequence[Arm]) -> str:
    smooth = window([run for arm in played for run in arm.runs])
    unit = axis(played[0].runs[0])
    over = f"means of {smooth} {unit}" if smooth > 1 else "unsmoothed"
    found = f"First, best and last point of each curve, {over}:\n\n{tables.curves(played, smooth)}"
    drawn = tables.learning(played)
    return f"{found}\n\nThe trained agents' answers:\n\n{drawn}" if drawn else found


def _kinds(of_task: Sequence[Arm]) -> str:
    played = [arm for arm in of_task if tag_names(arm.runs)]
    if not played:
        return "No trajectory carries a tag."
    return "\n\n".join(
        (f"**{inline(arm.label)}**\n\n" if len(of_task) > 1 else "") + tables.kind_shares(arm)
        for arm in played
    )


def _evaluation(experiments: Sequence[Experiment], drawn: Sequence[FigureFiles]) -> str:
    found = tables.held_out(experiments)
    figures = list(_figures(drawn, "comparison"))
    if found is None:
        said = "There is no evaluation yet: `orchestry evaluate RUN` plays the test split."
        return "\n\n".join([*figures, said])
    ks = tables.at_k(experiments)
    return "\n\n".join([*figures, f"{_COMPARED} {_PAID}", found, *([ks] if ks else [])])


def _baselines(experiments: Sequence[Experiment]) -> str:
    found = tables.beside(experiments)
    if found is None:
        return "There are no baselines yet: `orchestry baselines run all --of RUN` plays them."
    alone = [
        by.name
        for one in experiments
        for held in baselines(one)
        if (by := measure(one.run, held.run)) is not REWARD
    ]
    said = f"{_ALONE.format(by=alone[0])} " if alone else ""
    return f"{found}\n\nCompare rows with equal calls per problem. {said}{_PAID}"


def _cost(experiments: Sequence[Experiment], labels: Sequence[str]) -> str:
    pieces = [tables.side_by_side(labels, [costs(one) for one in experiments])]
    header = ["agent", "for", "calls", "from the cache", "tokens in", "tokens out", "USD"]
    for one in experiments:
        if one.run.neural:
            continue
        rows = [[inline(row[0]), inline(row[1]), *row[2:]] for row in by_agent(one.run)]
        who = f"{inline(one.label)}, by agent" if len(experiments) > 1 else "By agent"
        pieces.append(f"{who}:\n\n{table(header, rows)}")
    return "\n\n".join(pieces)


def _failed(experiments: Sequence[Experiment], labels: Sequence[str]) -> str:
    counts = [fault_counts(one.run) for one in experiments]
    taught = "" if all(one.run.neural for one in experiments) else f"\n\n{_TAUGHT}"
    return f"{tables.side_by_side(labels, counts)}{taught}"


def _again(experiments: Sequence[Experiment], command: str) -> str:
    lines = list[str]()
    for number, one in enumerate(experiments, start=1):
        new = "again" if len(experiments) == 1 else f"again-{number}"
        lines += commands(one, new)
    same = "A run whose table says deterministic gives the same numbers with the same seed."
    block = fenced("\n".join([*lines, f"# this report: {command}"]), longest=100_000, language="sh")
    return f"{same}\n\n{block}"


def _plain(command: str) -> str:
    """A command between backticks."""
    return " ".join(command.replace("`", "'").split())


@dataclass(frozen=True, slots=True)
class Report:
    """What was written."""

    folder: Path
    files: tuple[Path, ...]
    """RESULTS.md, summary.txt, the page, then the figures."""
    undrawn: str = ""
    """Why there are no figures, if they can't be drawn."""


def write_report(
    experiments: Sequence[Experiment],
    folder: Path,
    command: str,
    stages: str = "",
    checked: bool = False,
) -> Report:
    """Writes the report into `folder`, with `command` as its source. `stages`, `checked`: see
    results.

    Equal run directories give equal bytes. Without matplotlib there are no figures. Raises
    StoreError if the disk refuses.
    """
    lacking = undrawn()
    document, brief = folder / "RESULTS.md", folder / "summary.txt"
    try:
        drawn = [] if lacking else draw(arms(experiments), folder / "figures")
        text = results(experiments, drawn, command, lacking, stages, checked)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(document, text.encode("utf-8"))
        write_atomic(brief, summary_text(experiments, command).encode("utf-8"))
        shown = page.write_page(experiments, folder)
    except OSError as error:
        raise StoreError(
            f"{error.filename or folder} can't be written ({error.strerror or error}): free space "
            "or change rights there, or choose another --out; the runs are as they were"
        ) from None
    pictures = (path for one in drawn for path in one.paths)
    return Report(folder, (document, brief, shown, *pictures), lacking)


_SEARCH = {
    "samples per agent and state (k)": "search.k_samples",
    "beam width": "search.beam_width",
}
_LEARN = {
    "trajectories of a problem (G)": "learn.group_size",
    "episodes per update": "learn.every",
    "learning rate": "learn.learning_rate",
    "adapter rank": "learn.rank",
    "top-p": "learn.top_p",
    "top-k": "learn.top_k",
    "base in": "learn.dtype",
}
_ALL = {
    "split": "split",
    "seed": "seed",
    "temperature": "sampling.temperature",
    "longest answer, tokens": "sampling.max_tokens",
}


def setup(experiment: Experiment) -> dict[str, str]:
    """The settings that decide the run, by name, in order."""
    run, config = experiment.run, dict(leaves(experiment.run.config))
    if run.neural:
        return {**neural.setup(run), **grounds(run)}
    if (run.folder / DISTILLED).is_file():
        return {"run": str(run.folder), "task": str(config.get("task")), **_distilled(run.folder)}
    local = config.get("backend") == "local"
    keys = {**_ALL, **(_LEARN if local else _SEARCH)}
    opened = next((event for event in run.events if isinstance(event, Opened)), None)
    model = f"{opened.provider}/{opened.model}" if opened else "-"
    strategy = str(config.get("search.strategy"))
    return {
        "run": str(run.folder),
        "task": str(config.get("task")),
        "backend": f"{config.get('backend')}, {strategy}",
        "model": model,
        **_agents(run.config),
        "episodes": f"{len(run.episodes)} of {config.get('episodes')}",
        **({"episodes that failed": str(len(run.failed))} if run.failed else {}),
        **{name: _said(config.get(key)) for name, key in keys.items()},
        **_parts(config, local=local),
        "budget, USD": _said(config.get("budget.usd"), "no cap"),
        **grounds(run),
    }


def _distilled(folder: Path) -> dict[str, str]:
    """What a team was fine-tuned on, and how; nothing was played."""
    found = json.loads((folder / DISTILLED).read_bytes())
    settings = found["settings"]
    examples = ", ".join(f"{role} {one['examples']}" for role, one in found["agents"].items())
    return {
        "model": str(found["base"]),
        "made by": f"orchestry distil, {settings['method']} by {settings['by']}",
        "examples": examples,
        "epochs": str(len(found["epochs"]) - 1),
        "learning rate": str(settings["learning_rate"]),
        "seed": str(found["seed"]),
    }


def _agents(config: Mapping[str, Any]) -> dict[str, str]:
    """The models of agents that have their own."""
    found = {}
    for role, own in (config.get("agents") or {}).items():
        if own.get("model"):
            provider = (own.get("provider") or {}).get("name")
            found[f"model of {role}"] = f"{provider}/{own['model']}" if provider else own["model"]
    return found


def _said(value: Any, none: str = "the provider's own") -> str:
    return said(value, none)


def _parts(config: dict[str, Any], *, local: bool) -> dict[str, str]:
    """Settings of judge and behaviours, if the run has them."""
    judge = config.get("judge.enabled")
    found = {"judge": "as its provider allows" if judge is None else "on" if judge else "off"}
    if local:
        return found
    behaves = config.get("behaviors.enabled")
    every = f"every {config.get('behaviors.every')} episodes"
    allowed = every if behaves else "as its judge allows"
    return {**found, "behaviours learned": "off" if behaves is False else allowed}


def commands(experiment: Experiment, new: str) -> Iterator[str]:
    """The commands that repeat the run and its measurements, in the folder `new`."""
    run = shlex.quote(str(experiment.run.folder / "config.yaml"))
    yield f"orchestry run --config {run} --run-dir {new}"
    for held in held_evaluations(experiment):
        update = "" if held.update is None else f" --update {held.update} --no-compare"
        yield f"orchestry evaluate {new}{update}{_flags(held)}{_elsewhere(held, experiment)}"
    for held in baselines(experiment):
        yield f"orchestry baselines run {shlex.quote(held.name)} --of {new}{_flags(held)}"


def _flags(held: Held) -> str:
    samples = f" --samples {held.samples}" if held.samples else ""
    return f" --split {held.split}{samples} --episodes {held.run.config.get('episodes')}"


def _elsewhere(held: Held, experiment: Experiment) -> str:
    """The flags of an evaluation on another task."""
    if (how := held.transfer) is None:
        return ""
    places = [run.config.get("task_path") or [] for run in (held.run, experiment.run)]
    moved = [f"--task-path {shlex.quote(path)}" for path in places[0] if path not in places[1]]
    maps = [f"--map {shlex.quote(f'{agent}={role}')}" for role, agent in how.renamed]
    given = [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in leaves(how.changes)]
    sets = [f"--set {shlex.quote(f'{key}={value}')}" for key, value in given]
    return " " + " ".join([f"--task {shlex.quote(how.task)}", *maps, *sets, *moved])
