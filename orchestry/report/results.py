"""RESULTS.md: what runs came to, from what their directories hold and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from orchestry.report import tables
from orchestry.report.arms import Arm, arms, by_task
from orchestry.report.costs import by_agent, costs
from orchestry.report.curves import axis, window
from orchestry.report.experiment import Experiment
from orchestry.report.faults import faults
from orchestry.report.figures import Drawn
from orchestry.report.headline import summary
from orchestry.report.kinds import tag_names
from orchestry.report.markdown import bullets, fenced, inline, table
from orchestry.report.setup import commands, setup
from orchestry.report.trajectories import trajectories

_COMPARED = (
    "Rewards are in [0, 1], in brackets the 95 % interval of the mean (bootstrap over problems). "
    "A difference is paired by problem: between best trajectories where the team searches or is "
    "compared with best of n, else between the means of all. Where its interval covers 0, no "
    "difference is shown."
)
_TAUGHT = (
    "A group is the samples of one state; where all came to the same value, its advantages are "
    "zero and nothing is learned from it."
)


def results(
    experiments: Sequence[Experiment], drawn: Sequence[Drawn], command: str, undrawn: str = ""
) -> str:
    """The whole document; `command` is what wrote it, `undrawn` why there are no figures."""
    found = list(by_task(arms(experiments)).items())
    labels = [experiment.label for experiment in experiments]
    sections = {
        "Summary": _summary(experiments),
        "Configuration": tables.side_by_side(labels, [setup(one) for one in experiments]),
        "Learning curves": _by_task(found, _curves, drawn, "rewards"),
        "Evaluation on held-out problems": _evaluation(experiments, drawn),
        "Baselines": _baselines(experiments),
        "How the teams worked": _by_task(found, _kinds, drawn, "kinds", "tags"),
        "Example trajectories": "\n\n".join(map(trajectories, experiments)),
        "Cost": _cost(experiments, labels),
        "What failed": _failed(experiments, labels),
        "How to make this again": _again(experiments, command),
    }
    body = "\n\n".join(f"## {name}\n\n{text}" for name, text in sections.items())
    title = inline(", ".join(task for task, _ in found))
    lacking = f" {undrawn[0].upper()}{undrawn[1:]}." if undrawn else ""
    return f"# Results: {title}\n\nWritten by `{_plain(command)}`.{lacking}\n\n{body}\n"


def _summary(experiments: Sequence[Experiment]) -> str:
    said = summary(experiments)
    pieces = []
    for name, sentences in said:
        head = f"**{inline(name)}**\n\n" if len(said) > 1 else ""
        pieces.append(head + bullets(inline(sentence, longest=1000) for sentence in sentences))
    return "\n\n".join(pieces)


_Section = Callable[[Sequence[Arm]], str]
_Tasks = Sequence[tuple[str, Sequence[Arm]]]


def _by_task(found: _Tasks, text: _Section, drawn: Sequence[Drawn], *ways: str) -> str:
    """Each task's figures and text, under its name where there are several."""
    pieces = []
    for task, of_task in found:
        if len(found) > 1:
            pieces.append(f"### {inline(task)}")
        pieces += _figures([one for one in drawn if one.task == task], *ways)
        pieces.append(text(of_task))
    return "\n\n".join(pieces)


def _figures(drawn: Sequence[Drawn], *ways: str) -> Iterator[str]:
    for one in drawn:
        if one.way in ways:
            png, svg = (f"{path.parent.name}/{path.name}" for path in one.paths)
            image = f"![{inline(one.task)}: {one.way}]({png})"
            yield f"{image}\n\n{inline(one.caption, longest=2000)} ([SVG]({svg}))"


def _curves(of_task: Sequence[Arm]) -> str:
    played = [arm for arm in of_task if arm.runs]
    if not played:
        return "No episode is finished, so there is no curve."
    smooth = window([run for arm in played for run in arm.runs])
    unit = axis(played[0].runs[0])
    over = f"means of {smooth} {unit}" if smooth > 1 else "unsmoothed"
    return f"First, best and last point of each curve, {over}:\n\n{tables.curves(played, smooth)}"


def _kinds(of_task: Sequence[Arm]) -> str:
    played = [arm for arm in of_task if tag_names(arm.runs)]
    if not played:
        return "No trajectory carries a tag."
    return "\n\n".join(
        (f"**{inline(arm.label)}**\n\n" if len(of_task) > 1 else "") + tables.kinds(arm)
        for arm in played
    )


def _evaluation(experiments: Sequence[Experiment], drawn: Sequence[Drawn]) -> str:
    found = tables.held_out(experiments)
    figures = list(_figures(drawn, "comparison"))
    if found is None:
        said = "No evaluation is there: `orchestry evaluate RUN` plays the problems of split test."
        return "\n\n".join([*figures, said])
    ks = tables.at_k(experiments)
    return "\n\n".join([*figures, _COMPARED, found, *([ks] if ks else [])])


def _baselines(experiments: Sequence[Experiment]) -> str:
    found = tables.beside(experiments)
    if found is None:
        return "No baseline is there: `orchestry baselines run all --of RUN` plays them."
    return f"{found}\n\nCompare at equal calls: they stand in the table, a problem each."


def _cost(experiments: Sequence[Experiment], labels: Sequence[str]) -> str:
    pieces = [tables.side_by_side(labels, [costs(one) for one in experiments])]
    header = ["agent", "for", "calls", "from the cache", "tokens in", "tokens out", "USD"]
    for one in experiments:
        rows = [[inline(row[0]), inline(row[1]), *row[2:]] for row in by_agent(one.run)]
        who = f"{inline(one.label)}, by agent" if len(experiments) > 1 else "By agent"
        pieces.append(f"{who}:\n\n{table(header, rows)}")
    return "\n\n".join(pieces)


def _failed(experiments: Sequence[Experiment], labels: Sequence[str]) -> str:
    return f"{tables.side_by_side(labels, [faults(one.run) for one in experiments])}\n\n{_TAUGHT}"


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
