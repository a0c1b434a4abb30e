"""`orchestry export`: what a run learned, for use elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import (
    OUTPUT,
    Json,
    RunFolder,
    TaskPath,
    Trusted,
    flag,
    option,
    trusting,
    which_update,
)

if TYPE_CHECKING:
    from orchestry.engine.export import Exported
    from orchestry.engine.prompts import Prompts


LEARNED = "What was learned"
app = App()


@app.command("export")
def _command(
    run: RunFolder,
    merge: Annotated[
        bool, flag(LEARNED, "Whole models, the adapters merged into their base.", "--merge")
    ] = False,
    out: Annotated[
        Path | None, option(OUTPUT, "A new folder.  [RUN/export/update-N]", metavar="DIR")
    ] = None,
    agents: Annotated[
        list[str] | None,
        option(
            LEARNED,
            "This agent (backend local); may be repeated.  [all]",
            "--agent",
            metavar="ROLE",
        ),
    ] = None,
    update: Annotated[
        str | None,
        option(
            LEARNED,
            "The team after update N, or the best on dev.  [the last]",
            metavar="N|best",
        ),
    ] = None,
    task_path: TaskPath = None,
    trust: Trusted = False,
    verbose: Annotated[bool, flag(OUTPUT, "Tracebacks.", "--verbose")] = False,
    as_json: Json = False,
) -> None:
    """Export what a run's team learned, for use elsewhere.

    Of backend local: one folder per agent, a LoRA adapter that peft loads or, with `--merge`, a
    model that transformers loads. Of backend api: the agents' prompts and examples with what was
    learned, as team.yaml (for `--config`) and team.py (a dict that imports nothing). A README.md
    shows the whole team and has working code.
    """
    from orchestry.cli.console import Notes
    from orchestry.cli.screen import console
    from orchestry.engine.export import export
    from orchestry.engine.prompts import export_prompts
    from orchestry.store.run import load_run

    note, chosen = Notes(console(stderr=True)), which_update(update)
    if load_run(run).config.get("backend") == "api" and not (merge or agents):
        team = export_prompts(
            run, out, update=chosen, note=note, task_path=task_path or (), trust=trusting(trust)
        )
        typer.echo(json.dumps(_plain_team(run, team)) if as_json else _told_team(team))
        return
    found = export(run, out, merge=merge, agents=agents or (), update=chosen, note=note)
    typer.echo(json.dumps(_plain(run, found, merge)) if as_json else _told(found, merge))


def _plain_team(run: Path, found: Prompts) -> dict[str, Any]:
    return {
        "run_dir": str(run),
        "folder": str(found.folder),
        "update": found.update,
        "agents": list(found.team),
        "accepted": [one.id for one in found.accepted],
    }


def _told_team(found: Prompts) -> str:
    count = len(found.accepted)
    learned = f"{count} learned behaviour{'' if count == 1 else 's'}"
    return (
        f"prompts of {', '.join(found.team)} after update {found.update}, with {learned}\n"
        f"  {found.folder}: README.md, team.yaml, team.py"
    )


def _plain(run: Path, found: Exported, merged: bool) -> dict[str, Any]:
    return {
        "run_dir": str(run),
        "folder": str(found.folder),
        "merged": merged,
        "update": found.learned.update,
        "checkpoint": found.learned.state["checkpoint"],
        "mean_reward": found.learned.state["reward"],
        "exports": [
            {"folder": str(path), "agents": list(adapter.agents), "base": adapter.base}
            for path, adapter in found.written
        ],
    }


def _told(found: Exported, merged: bool) -> str:
    kind = "merged models" if merged else "LoRA adapters"
    head = (
        f"{kind} of update {found.learned.update} (mean reward "
        f"{found.learned.state['reward']:.3f}); README.md in each says how to use it"
    )
    return "\n".join([head, *(f"  {path}  ({_size(path)})" for path, _ in found.written)])


def _size(folder: Path) -> str:
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{size / 1e6:,.1f} MB"
