"""`orchestry models`: small models for this machine, and how to get one."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import Json

if TYPE_CHECKING:
    from orchestry.models.gguf import Known

app = App(
    """List and fetch small models that this machine runs.

    `orchestry run --model NAME` takes a name of the list, a hub's `owner/name:file.gguf`, or the
    path of a GGUF file: backend api asks it, backend local trains adapters on it. Without --model
    both use the first of the list (backend local on a GPU: a larger one).
    """
)
_FITS = {True: "fits", False: "too large for the free memory", None: "memory unknown"}


@app.command("list")
def _list(as_json: Json = False) -> None:
    """Show small instruct models: size, memory for asking and for training, licence, and whether
    they fit this machine."""
    from orchestry.cli.hardware import learning_gb
    from orchestry.core.machine import memory_gb
    from orchestry.models.gguf import KNOWN

    free = memory_gb()
    rows = [{**row(one, free), "learning_gb": learning_gb(one.name)} for one in KNOWN]
    if as_json:
        typer.echo(json.dumps({"free_memory_gb": free, "models": rows}))
        return
    for one in rows:
        learns = "" if one["learning_gb"] is None else f", {one['learning_gb']:.1f} GB to train"
        typer.echo(f"{one['name']:20}{told(one)}{learns}; {one['licence']}: {one['use']}")


def row(one: Known, free: float | None) -> dict[str, Any]:
    """A model's facts, and its state on this machine."""
    from orchestry.models.gguf import gguf

    fits = None if free is None else one.memory_gb <= free
    fetched = gguf(one.name).path.is_file()
    return {**asdict(one), "size_gb": round(one.size / 1e9, 2), "fits": fits, "fetched": fetched}


def told(one: dict[str, Any]) -> str:
    """The same in words."""
    state = "fetched" if one["fetched"] else "not fetched"
    size = f"{one['size_gb']:.2f} GB on disk ({state})"
    return f"{size}, {one['memory_gb']:.1f} GB memory ({_FITS[one['fits']]})"


@app.command("get")
def _get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of `models list`, or owner/name:file.gguf.")
    ],
) -> None:
    """Fetch a model into the user cache, and print its path."""
    from orchestry.models.embedded import fetched
    from orchestry.models.gguf import gguf

    typer.echo(str(fetched(gguf(name), threading.Event())))
    ways = "--backend local trains it, --provider local draws it in batches"
    typer.echo(f"use it: orchestry run --model {name} ({ways})", err=True)
