"""`orchestry export`: what a local run learned, for use elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import OUTPUT, Json, RunFolder, flag, option, which_update

if TYPE_CHECKING:
    from orchestry.engine.export import Exported


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
        option(LEARNED, "This agent; may be repeated.  [all]", "--agent", metavar="ROLE"),
    ] = None,
    update: Annotated[
        str | None,
        option(
            LEARNED,
            "The team after update N, or the best on dev.  [the last]",
            metavar="N|best",
        ),
    ] = None,
    verbose: Annotated[bool, flag(OUTPUT, "Tracebacks.", "--verbose")] = False,
    as_json: Json = False,
) -> None:
    """Export what a local run learned, for use elsewhere: one folder per agent.

    Each folder is a LoRA adapter that peft loads or, with `--merge`, a model that transformers
    loads. Its README.md has working code, the agent's system prompt and the sampling settings.
    """
    from orchestry.cli.console import Notes
    from orchestry.cli.screen import console
    from orchestry.engine.export import export

    found = export(
        run,
        out,
        merge=merge,
        agents=agents or (),
        update=which_update(update),
        note=Notes(console(stderr=True)),
    )
    typer.echo(json.dumps(_plain(run, found, merge)) if as_json else _told(found, merge))


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
