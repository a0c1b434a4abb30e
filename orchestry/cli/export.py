"""`orchestry export`: what a run learned, for use elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack, cast

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import (
    LESSONS,
    OUTPUT,
    Json,
    LessonFlags,
    RunFolder,
    TaskPath,
    Trusted,
    flag,
    option,
    spread,
    trusting,
    which_update,
)
from orchestry.core import extensions
from orchestry.core.errors import ConfigError

if TYPE_CHECKING:
    from orchestry.engine.export import Chats, Exported
    from orchestry.engine.prompts import Prompts
    from orchestry.engine.trust import Trust
    from orchestry.store.checkpoints import Which


LEARNED = "What was learned"
_FORMS = ("openai", "hf", "inspect")
app = App()


_Update = Annotated[
    str | None,
    option(
        LEARNED,
        "The team after update N, or the best on dev.  [the last]",
        metavar="N|best",
    ),
]


class ChatFlags(LessonFlags, total=False):
    """Flags of chats; None means not given."""

    form: Annotated[
        Literal["openai", "hf", "inspect"] | None,
        option(
            LESSONS,
            "Chats to fine-tune other models on, in this form: openai, or hf as TRL reads it. Or "
            "all trajectories as an eval log that `inspect view` shows.",
            "--as",
        ),
    ]


@app.command("export")
@spread
def _command(
    run: RunFolder,
    merge: Annotated[
        bool, flag(LEARNED, "Whole models, the adapters merged into their base.", "--merge")
    ] = False,
    out: Annotated[
        Path | None, option(OUTPUT, "A new folder.  [RUN/export/...]", metavar="DIR")
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
    update: _Update = None,
    task_path: TaskPath = None,
    trust: Trusted = False,
    verbose: Annotated[bool, flag(OUTPUT, "Tracebacks.", "--verbose")] = False,
    as_json: Json = False,
    **flags: Unpack[ChatFlags],
) -> None:
    """Export what a run's team learned, for use elsewhere.

    Of backend local: one folder per agent, a LoRA adapter that peft loads or, with `--merge`, a
    model that transformers loads. Of backend api: the agents' prompts and examples with what was
    learned, as team.yaml (for `--config`) and team.py (a dict that imports nothing). A README.md
    shows the whole team and has working code.

    With `--as`: the best answers of a run of api or local, chosen as `distil` does, as one file of
    chats per agent, with a README.md that says where they come from.
    """
    from orchestry.cli.console import Notes
    from orchestry.cli.screen import console

    found = exported(
        run,
        out,
        merge=merge,
        agents=agents or (),
        update=which_update(update),
        note=Notes(console(stderr=True)),
        task_path=task_path or (),
        trust=trusting(trust),
        **cast("Any", {key: value for key, value in flags.items() if value is not None}),
    )
    typer.echo(json.dumps(_as_json(run, found, merge)) if as_json else _in_words(found, merge))


def exported(
    run: Path,
    out: Path | None,
    *,
    merge: bool,
    agents: Sequence[str],
    update: Which,
    note: Callable[[str], None],
    task_path: Sequence[Path] = (),
    trust: Trust = False,
    form: str | None = None,
    **how: Any,
) -> Exported | Prompts | Chats | Path:
    """What is asked for: weights, prompts, chats, or the file of an eval log. `how`: which answers,
    for chats. Raises ConfigError for options that do not go together."""
    common: dict[str, Any] = {"note": note, "task_path": task_path, "trust": trust}
    if form is None and str(out) in _FORMS:
        raise ConfigError(f"the folder comes first, and {out} is a form: --as {out} (form='{out}')")
    if form is None and how:
        name = next(iter(how)).replace("_", "-")
        raise ConfigError(f"--{name} chooses answers: add --as openai or --as hf (in Python form)")
    if form is not None:
        _refuse(merge=merge, agent=agents, update=update)
    if form == "inspect":
        return _logged(run, out, how)
    if form is not None:
        chats: Chats = extensions.find("exports", form)(run, out, form, **how, **common)
        return chats
    if _learns_prompts(run) and not (merge or agents):
        from orchestry.engine.prompts import export_prompts

        return export_prompts(run, out, update=update, **common)
    from orchestry.engine.export import export

    return export(run, out, merge=merge, agents=agents, update=update, note=note)


def folder_of(found: Exported | Prompts | Chats | Path) -> Path:
    """Where an export lies."""
    return found if isinstance(found, Path) else found.folder


def _learns_prompts(run: Path) -> bool:
    from orchestry.store.run import load_run

    return load_run(run).config.get("backend") == "api"


def _logged(run: Path, out: Path | None, how: dict[str, Any]) -> Path:
    if how:
        name = next(iter(how)).replace("_", "-")
        raise ConfigError(f"an eval log has all answers: leave out --{name}")
    written: Path = extensions.find("exports", "inspect")(run, out and out / "inspect.eval")
    return written


def _refuse(**given: object) -> None:
    for name, value in given.items():
        if value:
            raise ConfigError(f"--as writes what the agents said: leave out --{name}")


def _as_json(run: Path, found: Exported | Prompts | Chats | Path, merged: bool) -> dict[str, Any]:
    from orchestry.engine.export import Chats
    from orchestry.engine.prompts import Prompts

    if isinstance(found, Path):
        return {"run_dir": str(run), "file": str(found)}
    if isinstance(found, Chats):
        return _plain_chats(run, found)
    return _plain_team(run, found) if isinstance(found, Prompts) else _plain(run, found, merged)


def _in_words(found: Exported | Prompts | Chats | Path, merged: bool) -> str:
    from orchestry.engine.export import Chats
    from orchestry.engine.prompts import Prompts

    if isinstance(found, Path):
        return f"eval log {found}; `inspect view start --log-dir {found.parent}` shows it"
    if isinstance(found, Chats):
        return _told_chats(found)
    return _told_team(found) if isinstance(found, Prompts) else _told(found, merged)


def _plain_chats(run: Path, found: Chats) -> dict[str, Any]:
    return {
        "run_dir": str(run),
        "folder": str(found.folder),
        "form": found.form,
        "agents": dict(found.lines),
        "cut": found.cut,
    }


def _told_chats(found: Chats) -> str:
    listed = [f"  {path}: {found.lines[role]} lines" for role, path in found.files.items()]
    return "\n".join([f"chats in {found.folder}; README.md says where they come from", *listed])


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
    if not all(adapter.config for adapter in found.adapters):  # learn.method=full
        kind = "whole models"
    head = (
        f"{kind} of update {found.learned.update} (reward "
        f"{found.learned.state['reward']:.3f}); README.md in each says how to use it"
    )
    return "\n".join([head, *(f"  {path}  ({_size(path)})" for path, _ in found.written)])


def _size(folder: Path) -> str:
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{size / 1e6:,.1f} MB"
