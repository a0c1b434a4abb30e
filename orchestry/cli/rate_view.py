"""What a person sees who rates: a trajectory, then what task and judge say of it; the agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestry.judge.calibration import PRIOR, Agreement, Calibration, Shown, judged, reward
from orchestry.report.words import plain
from orchestry.store.journal import Rated
from orchestry.store.records import EpisodeRecord, NodeRecord


def work_panel(shown: Shown, title: str) -> Panel:
    """The problem as the first agent saw it and every move: nothing that could sway a rating."""
    path = shown.record.path(shown.node.id)
    rows: list[RenderableType] = [
        Text(f"the problem, as {path[0].turns[0].agent} saw it", style="dim"),
        Text(plain(_problem(path[0]))),
    ]
    for node in path:
        for turn in node.turns:
            head = Text(turn.agent, style="bold cyan").append(f"  {node.id}", style="dim")
            text = plain(turn.completion.text)
            rows += [Text(), head, Text(text) if text else Text("(empty)", style="dim")]
    return Panel(Group(*rows), title=Text(f"{title}: episode {shown.record.episode}, {_id(shown)}"))


def numbers_panel(shown: Shown, rating: float | None) -> Panel:
    """The person's rating beside reward, parts, feedback, the judge's numbers and the credits."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    if rating is not None:
        facts.add_row("you", Text(f"{rating:.3f}", style="bold"))
    parts = "  ".join(f"{part.name} {part.value:.2f}" for part in shown.node.score.parts)
    facts.add_row("reward", Text.assemble((f"{shown.reward:.3f}", "bold"), f"  ({parts})"))
    if shown.node.score.feedback:
        facts.add_row("", Text(plain(shown.node.score.feedback), style="dim"))
    for node in shown.record.path(shown.node.id):
        if node.judged is not None:
            facts.add_row("judge", _judged(node))
    for row in shown.record.credits:
        if row.leaf == shown.node.id:
            interval = f"[{row.low:+.3f}, {row.high:+.3f}]"
            facts.add_row("credit", f"{row.credit:+.3f}  {row.agent}, 95 % in {interval}")
    why = "as asked" if shown.why == "asked for" else f"one of the {shown.why} by reward"
    return Panel(facts, title=Text(why), expand=False)


def ratings_table(records: Sequence[EpisodeRecord], said: Mapping[tuple[int, str], Rated]) -> Table:
    """Every rated node, in order of play, with the judge's last number on the way to it."""
    table = Table("episode", "node", "problem", box=None, pad_edge=False, header_style="dim")
    for heading in ("you", "reward", "judge"):
        table.add_column(heading, justify="right", header_style="dim", no_wrap=True)
    table.add_column("comment", header_style="dim")
    for record in records:
        for node in record.nodes:
            event = said.get((record.episode, node.id))
            if event is not None:
                numbers = (event.rating, reward(node), judged(record, node))
                cells = (str(record.episode), node.id, record.problem, *map(_number, numbers))
                table.add_row(*map(Text, cells), Text(plain(event.comment)))
    return table


def agreement_table(judge: Agreement, task: Agreement, fitted: Calibration) -> Group:
    """How far the person agrees with judge and task, and what this makes of the judge."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("you and", no_wrap=True)
    for heading in ("rated", "pairs alike", "mean distance", "rank correlation"):
        table.add_column(heading, justify="right")
    for name, found in (("the judge", judge), ("the reward", task)):
        alike = "-" if found.alike is None else f"{found.alike:.0%} of {found.pairs}"
        numbers = map(_number, (found.difference, found.spearman))
        table.add_row(name, str(found.count), alike, *numbers)
    return Group(table, Text(), Text(_verdict(judge, task, fitted), style="dim"))


def _verdict(judge: Agreement, task: Agreement, fitted: Calibration) -> str:
    """What the numbers can't say: what is missing, or what the ratings do to the judge."""
    if not task.count:
        return "Nothing is rated yet, so there is nothing to compare."
    if not judge.count:
        return "The judge rated none of these, nor a move that led to one: nothing to compare."
    counts = ", ".join(f"{number:g} as {fitted(number):.2f}" for number in (0.0, 0.5, 1.0))
    return f"By your ratings, and a prior worth {PRIOR:g}, the judge's numbers count: {counts}."


def _problem(first: NodeRecord) -> str:
    asked = [message.content for message in first.turns[0].messages if message.role == "user"]
    return asked[-1] if asked else "(nothing)"


def _judged(node: NodeRecord) -> Text:
    movers = " and ".join(turn.agent for turn in node.turns)
    text = Text.assemble((f"{node.judged:.3f}", "bold"), f"  {movers}'s move {node.id}")
    return text.append(f": {plain(node.judge_feedback)}" if node.judge_feedback else "")


def _id(shown: Shown) -> str:
    return f"{shown.record.problem}, node {shown.node.id}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
