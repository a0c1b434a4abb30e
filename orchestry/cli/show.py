"""The end of a run: a panel, the best trajectory, or one JSON object; and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from orchestry.cli.screen import console, facts, fitted, print_framed
from orchestry.report.headline import updated
from orchestry.report.recipes import brought, stages_said
from orchestry.report.text import counted, left_out, plain
from orchestry.store.measurements import EVALUATIONS
from orchestry.store.progress import MEAN, PACE
from orchestry.store.recipes import STAGES, finished
from orchestry.store.records import UNMEASURED, CreditRecord, EpisodeRecord, NodeRecord, Summary
from orchestry.store.run import Run

EXIT_CODES = {"done": 0, "failed": 1, "budget": 3, "away": 4, "interrupted": 130}
ENDINGS = {
    "done": "[green]done[/]",
    "budget": "[yellow]stopped at the budget; results are kept[/]",
    "away": "[yellow]stopped: the server stayed away; results are kept[/]",
    "interrupted": "[yellow]interrupted[/]",
    "failed": "[red]failed[/]",
}


def finish_run(run: Run, *, show_best: bool, as_json: bool) -> int:
    """Shows a run's results; returns the exit code."""
    summary = run.summary
    where = console(stderr=as_json)
    if as_json:
        typer.echo(summary.model_dump_json())
    if show_best and run.best:
        title = f"best: episode {run.best.episode}, {escape(run.best.problem)}"
        print_framed(where, _best(run.best), title, expand=True)
    if not as_json:
        print_framed(where, figures(summary), f"{escape(summary.task)}: {ending(summary)}")
        if summary.prompt_diff:
            learned = counted(summary.accepted, "behaviour")
            print_framed(where, _diff(summary.prompt_diff), f"learned: {learned} in the prompts")
        # Not in a frame and never wrapped, so that it can be copied.
        where.print(Text(f"orchestry {_next(summary)}", style="dim"), soft_wrap=True)
    return EXIT_CODES[summary.stopped]


def finish_recipe(last: Run, *, as_json: bool) -> int:
    """Shows what the stages of a recipe brought, from the run that ended it; returns the exit
    code."""
    folder = next(place.parent for place in last.folder.absolute().parents if place.name == STAGES)
    found, done = brought(folder), finished(last.events)
    if as_json:
        stages = [one.plain() for one in found]
        typer.echo(json.dumps({"run_dir": str(folder), "done": done, "stages": stages}))
    else:
        for sentence in stages_said(found):
            typer.echo(fitted(plain(sentence), hang=2))
        typer.echo(f"orchestry {'report' if done else 'resume'} {folder}")
    return 0 if done else EXIT_CODES[last.summary.stopped]


def figures(summary: Summary) -> Group:
    """Reward, calls and dollars, in all and by agent; of backend ppo what its last batch showed."""
    if summary.backend == "ppo":
        return Group(facts(*stepped(summary)))
    return Group(facts(*_facts(summary)), Text(), usage_table(summary))


def ending(summary: Summary) -> str:
    """How the run stopped, for the title."""
    if summary.stopped == "done" and summary.updates and summary.taught == 0:
        return "[yellow]done, and nothing was learned[/]"
    return ENDINGS[summary.stopped]


def _diff(text: str) -> Group:
    """What the library changed in the agents' prompts."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    return Group(*(Text(line, styles.get(line[:1], "")) for line in plain(text).splitlines()))


def _facts(summary: Summary) -> list[tuple[str, str]]:
    cap = "no cap" if summary.budget_usd is None else f"of ${summary.budget_usd:g}"
    lost = f", ${summary.lost_usd:.4f} of it for unanswered calls" if summary.lost_usd else ""
    return [
        ("model", f"{summary.provider}/{summary.model}"),
        ("strategy", summary.strategy),
        *([("baseline", summary.baseline)] if summary.baseline else []),
        ("episodes", f"{summary.episodes} of {summary.episodes_asked}{_failed(summary)}"),
        *_means(summary),
        ("best episode", _top(summary)),
        ("calls", f"{summary.calls}, and {summary.cache_hits} from the cache{_refused(summary)}"),
        ("cost", f"${summary.cost_usd:.4f} {cap}{lost}"),
        *_uses(summary),
        *_providers(summary),
        ("time", f"{summary.seconds:.1f} s"),
        ("tags", _tags(summary)),
    ]


def stepped(summary: Summary) -> list[tuple[str, str]]:
    """What the last batch of a run of backend ppo showed, by name."""
    last = summary.learning
    shown = [
        ("steps", f"{last.get('steps', 0):,.0f}"),
        ("games", f"{last.get('train/total_episodes', 0):,.0f}"),
        ("steps per second", f"{last.get(PACE, 0):,.0f}"),
    ]
    if (mean := last.get(MEAN)) is not None:
        games = counted(min(100, int(last["train/total_episodes"])), "game")
        shown.insert(1, ("return", f"{mean:.2f} (the team's mean, over the last {games})"))
    for name in ("entropy", "kl", "clip_fraction", "explained_variance"):
        if (value := last.get(f"learn/{name}")) is not None:
            shown.append((name.replace("_", " "), f"{value:.3f}"))
    updates = counted(summary.updates, "checkpoint")
    return [*shown, ("checkpoints", updates), ("time", f"{summary.seconds:.1f} s")]


def _failed(summary: Summary) -> str:
    """What is missing, if anything is."""
    calls = counted(summary.failed_calls, "call")
    if summary.failed_episodes:
        return f", {summary.failed_episodes} of them failed and left out ({calls} failed)"
    return f" ({calls} failed: their samples are left out)" if summary.failed_calls else ""


def _refused(summary: Summary) -> str:
    calls = counted(summary.refused_calls, "call")
    return f" ({calls} refused to programs)" if summary.refused_calls else ""


def _means(summary: Summary) -> list[tuple[str, str]]:
    """The mean over all trajectories, and over each episode's best."""
    lost, mark = left_out(summary), "partial: " if summary.partial else ""
    every = f"all trajectories{' but those left out' if lost else ''}"
    return [
        ("reward", f"{_number(summary.mean_reward)} ({mark}mean over {every})"),
        ("best of k", f"{_number(summary.best_of_k)} ({mark}mean over each episode's best)"),
        *([("left out", lost)] if lost else []),
    ]


def _tags(summary: Summary) -> str:
    """Shares of the evaluated trajectories, such as the cooperation rate."""
    shares = [f"{tag} {count}/{summary.leaves}" for tag, count in summary.tags.items()]
    return "  ".join(shares) or "none"


def _uses(summary: Summary) -> list[tuple[str, str]]:
    """Lines on judge and learning, if there was any."""
    lines = []
    if sum(map(bool, summary.cost_by_use.values())) > 1:
        spent = summary.cost_by_use.items()
        lines.append(("of it for", "  ".join(f"{use} ${usd:.4f}" for use, usd in spent)))
    if summary.judgements:
        counts = summary.judgements.items()
        lines.append(("judge", "  ".join(f"{outcome} {count}" for outcome, count in counts)))
    if summary.updates:
        what = "weights" if summary.backend == "local" else "library"
        lines.append((what, updated(summary)))
    if summary.power:
        lines.append(("power", str(summary.power)))
    if summary.dev_rewards:
        rewards = summary.dev_rewards.items()
        at = f" (update {summary.best_update})" if summary.best_update else ""
        line = "  ".join(f"{when} {reward:.3f}" for when, reward in rewards)
        lines.append(("dev reward", line + at))
    return lines


def _providers(summary: Summary) -> list[tuple[str, str]]:
    """A line if several providers were asked."""
    found = [
        f"{name or 'others'} {counted(calls, 'call')} ${summary.cost_by_provider[name]:.4f}"
        for name, calls in summary.calls_by_provider.items()
    ]
    return [("providers", "  ".join(found))] if found else []


def usage_table(summary: Summary) -> Table:
    """Calls, tokens and dollars by agent and purpose."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("agent", "purpose"):
        table.add_column(heading, overflow="fold", header_style="dim")
    for heading in ("calls", "cached", "tokens in", "out", "dollars"):
        table.add_column(heading, justify="right", header_style="dim", no_wrap=True)
    for row in summary.usage:
        table.add_row(
            row.agent,
            row.purpose,
            f"{row.calls}",
            f"{row.cache_hits}",
            f"{row.input_tokens:,}",
            f"{row.output_tokens:,}",
            f"{row.usd:.4f}",
        )
    return table


def _next(summary: Summary) -> str:
    if summary.stopped == "done":
        folder = Path(summary.run_dir)
        if folder.parent.name == EVALUATIONS:  # stored in its run
            return f"report {folder.parent.parent}"
        if summary.backend == "ppo":
            return f"evaluate {folder}"
        return f"evaluate {folder} --split test"
    if summary.stopped == "budget":  # only the ledger knows the next call's worst case
        return f"resume {summary.run_dir} --budget USD (the last note above names the amount)"
    return f"resume {summary.run_dir}"


def _best(record: EpisodeRecord) -> Group:
    """The path to the best leaf: each move, its value and its advantage."""
    parts = "  ".join(f"{part.name} {part.value:.2f}" for part in record.best_node.score.parts)
    rows: list[RenderableType] = []
    for node in record.path(record.best):
        rows += [_move(record, node), Text()]
    rows.append(Text(f"reward {record.reward:.3f}  ({parts})", style="bold"))
    if record.best_node.score.feedback:
        rows.append(Text(plain(record.best_node.score.feedback), style="dim"))
    credits = [credit for credit in record.credits if credit.leaf == record.best]
    if not credits:
        rows += [Text(), Text(f"credit by agent: {UNMEASURED}", style="dim")]
    else:
        rows += [Text(), Text("credit by agent, in units of the reward", style="dim")]
        rows += [Text(_credit(credit)) for credit in credits]
    return Group(*rows)


def _move(record: EpisodeRecord, node: NodeRecord) -> Group:
    group = next(g for g in record.groups if g.parent == node.parent)
    place = group.children.index(node.id)
    head = (
        f"{' + '.join(group.agents)}  value {group.values[place]:.3f} ({group.source})  "
        f"advantage {group.advantages[place]:+.3f}"
    )
    siblings = " ".join(f"{advantage:+.2f}" for advantage in group.advantages)
    texts = [Text(plain(turn.completion.told).strip() or "(empty)") for turn in node.turns]
    return Group(
        Text(head, style="bold cyan"),
        Text(f"advantages of its group: {siblings}", style="dim"),
        *texts,
    )


def _credit(credit: CreditRecord) -> str:
    return f"  {credit.agent}  {credit.credit:+.3f}  [{credit.low:+.3f}, {credit.high:+.3f}]"


def _top(summary: Summary) -> str:
    if summary.best_reward is None:
        return "-"
    return f"{summary.best_episode}, whose best trajectory earned {summary.best_reward:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
