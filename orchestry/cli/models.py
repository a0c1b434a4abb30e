"""`orchestry models`: small models for the embedded provider, and how to get one."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from typing import Annotated

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import Json

app = App(
    """List and fetch small models for the embedded provider.

    `orchestry run --provider embedded --model NAME` takes a name of the list, a hub's
    `owner/name:file.gguf`, or the path of a GGUF file. Without --model it uses the first of the
    list.
    """
)


@app.command("list")
def _list(as_json: Json = False) -> None:
    """Show small instruct models: size, memory, licence, and whether they fit this machine."""
    from orchestry.core.machine import memory_gb
    from orchestry.models.gguf import KNOWN, gguf

    free, rows = memory_gb(), []
    for one in KNOWN:
        fits = None if free is None else one.memory_gb <= free
        fetched = gguf(one.name).path.is_file()
        size_gb = round(one.size / 1e9, 2)
        rows.append({**asdict(one), "size_gb": size_gb, "fits": fits, "fetched": fetched})
    if as_json:
        typer.echo(json.dumps({"free_memory_gb": free, "models": rows}))
        return
    for row in rows:
        state = "fetched" if row["fetched"] else "not fetched"
        fit = {True: "fits", False: "too large for the free memory", None: "memory unknown"}
        typer.echo(
            f"{row['name']:20}{row['size_gb']:5.2f} GB on disk {row['memory_gb']:4.1f} GB memory  "
            f"{row['licence']}  {state}, {fit[row['fits']]}: {row['use']}"
        )


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
    typer.echo(f"use it: orchestry run --backend api|local --model {name}", err=True)
