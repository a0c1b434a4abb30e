"""`orchestry export`: what a local run learned, for use elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestry.cli.options import RUN, which_update

if TYPE_CHECKING:
    from orchestry.engine.export import Exported
    from orchestry.store.checkpoints import Which


@click.command(name="export")
@click.argument("run", type=RUN)
@click.option("--merge", is_flag=True, help="Whole models, the adapters merged into their base.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A new folder.  [RUN/export/update-N]",
)
@click.option("--agent", "agents", metavar="ROLE", multiple=True, help="This one; repeatable.")
@click.option(
    "--update",
    type=which_update,
    metavar="N|best",
    help="As that update left it, or the one that earned most on dev.  [the last]",
)
@click.option("--verbose", is_flag=True, help="Tracebacks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    run: Path,
    merge: bool,
    out: Path | None,
    agents: tuple[str, ...],
    update: Which,
    verbose: bool,
    as_json: bool,
) -> None:
    """Write what a local run learned into a folder an agent, for use elsewhere.

    Each is a LoRA adapter that peft loads, or with --merge a model that transformers loads. Its
    README.md says how, with the agent's system prompt and how its answers were drawn.
    """
    from orchestry.cli.notes import Notes
    from orchestry.cli.screen import console
    from orchestry.engine.export import export

    found = export(
        run,
        out,
        merge=merge,
        agents=agents,
        update=update,
        note=Notes(console(stderr=True)),
    )
    click.echo(json.dumps(_plain(run, found, merge)) if as_json else _told(found, merge))


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
