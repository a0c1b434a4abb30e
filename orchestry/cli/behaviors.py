"""`orchestry behaviors`: what a team learned, the evidence for it, and how it changed the
prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import Json, run_argument
from orchestry.cli.screen import console, facts

if TYPE_CHECKING:
    from orchestry.backends.library import Behavior, Evidence, Library

SUFFIXES = (".yaml", ".yml")
_STYLES = {"accepted": "green", "trial": "yellow", "candidate": "yellow"}
"""Colours by status; other statuses are dim."""
Where = Annotated[Path | None, run_argument("WHERE", "A run, a library, or a folder of libraries.")]
app = App(
    """List, show and compare what teams learned.

    WHERE is a run directory, a library's YAML file, or a folder of these files. Without it, all
    files in ./behaviors (else the libraries that ship) and the library of the newest run in ./runs
    are read.
    """
)


@app.command("list")
def _list(where: Where = None, as_json: Json = False) -> None:
    """Show every behaviour with its status and evidence."""
    libraries = _libraries(where)
    if as_json:
        typer.echo(json.dumps({"libraries": [_plain(*found) for found in libraries.items()]}))
        return
    for path, library in libraries.items():
        _print_library(path, library)


@app.command("show")
def _show(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `behaviors list` shows it.")],
    where: Where = None,
    as_json: Json = False,
) -> None:
    """Show one behaviour whole. A unique prefix of its ID is enough."""
    path, behavior = _found(id, _libraries(where))
    if as_json:
        typer.echo(json.dumps({"file": str(path), **behavior.model_dump(mode="json")}))
    else:
        _print_behavior(path, behavior)


@app.command("diff")
def _diff(
    before: Annotated[Path, run_argument("RUN|A", "A run, or the library to compare with.")],
    after: Annotated[Path | None, run_argument("B", "The other library.")] = None,
    as_json: Json = False,
) -> None:
    """Show what a run's library changed in its agents' prompts.

    With two libraries A and B (files or runs): what B adds to the prompts that A does not.
    """
    text = _run_diff(before) if after is None else _library_diff(before, after)
    if as_json:
        typer.echo(json.dumps({"diff": text}))
    elif text:
        _print_diff(text)
    else:
        typer.echo("No prompt is changed.")


# --- finding ------------------------------------------------------------------------------------


def _libraries(where: Path | None) -> dict[Path, Library]:
    """The libraries by file; raises ConfigError if there is none."""
    from orchestry.backends.library import read_library
    from orchestry.core.errors import ConfigError

    paths = _default_files() if where is None else _files(where)
    if not paths:
        place = "./behaviors and ./runs hold" if where is None else f"{where} holds"
        raise ConfigError(
            f"{place} no library of behaviours: give a run that learned (behaviors.enabled, at "
            "least behaviors.every episodes), or a library's YAML file"
        )
    return {path: read_library(path) for path in paths}


def _default_files() -> list[Path]:
    from orchestry.backends.library import IN_RUN, shipped

    runs = sorted(Path("runs").glob(f"*/{IN_RUN}"), key=lambda path: path.stat().st_mtime)
    return [*(_yaml_files(Path("behaviors")) or shipped()), *runs[-1:]]


def _files(where: Path) -> list[Path]:
    from orchestry.backends.library import IN_RUN, file_of
    from orchestry.core.errors import ConfigError
    from orchestry.store.run import Run, check_texts

    if (where / "config.yaml").exists():
        check_texts(Run(where))
    if (where / "journal.jsonl").exists() or (where / IN_RUN).exists():
        return [where / IN_RUN] if (where / IN_RUN).exists() else []
    if where.is_dir():
        return _yaml_files(where)
    if not where.exists():
        if (bundled := file_of(where)).exists():
            return [bundled]
        raise ConfigError(f"{where} does not exist: give a run directory or a library's YAML file")
    return [where]


def _yaml_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix in SUFFIXES)


def _found(id: str, libraries: dict[Path, Library]) -> tuple[Path, Behavior]:
    """The behaviour with that id prefix; if several files have it, the last one."""
    from orchestry.core.errors import ConfigError, unknown

    everything = {b.id: (path, b) for path, one in libraries.items() for b in one.behaviors}
    if not everything:
        files = ", ".join(map(str, libraries))
        raise ConfigError(f"there is no behaviour '{id}': {files} is empty, give another library")
    fitting = [found for key, found in everything.items() if key.startswith(id)]
    if not fitting:
        raise ConfigError(unknown("behaviour", id, [*everything]))
    if len(fitting) > 1:
        known = ", ".join(behavior.id for _, behavior in fitting)
        raise ConfigError(f"'{id}' begins several ids: give one of {known}")
    return fitting[0]


def _one(where: Path) -> Library:
    """The library of a file or a run."""
    from orchestry.core.errors import ConfigError

    libraries = _libraries(where)
    if len(libraries) > 1:
        names = ", ".join(path.name for path in libraries)
        raise ConfigError(f"{where} holds several libraries: give one of {names}")
    return next(iter(libraries.values()))


def _run_diff(folder: Path) -> str:
    """The run's prompts per agent, without and with what it learned."""
    from orchestry.backends.library import Library, prompt_diff
    from orchestry.core.errors import ConfigError
    from orchestry.engine.export import system_prompts
    from orchestry.store.run import load_run

    if folder.is_file():
        raise ConfigError(
            f"{folder} is one library: give a run, to see its prompts before and after "
            "(`behaviors diff RUN`), or two libraries (`behaviors diff A B`)"
        )
    run, after = load_run(folder), _one(folder)
    prompts = dict.fromkeys((b.agent for b in after.behaviors), "")  # of a run without an episode
    for role, system in system_prompts(run):
        own = after.own(role, system)
        prompts[role] = prompts.get(role, "") if own is None else own
    begun = {b.agent for b in after.behaviors if b.kind == "prompt" and b.status == "accepted"}
    if any(not prompts[role] for role in begun) and (run.folder / "summary.json").exists():
        return run.summary.prompt_diff  # a learned prompt was there from the start
    return prompt_diff(Library(task=after.task, model=after.model), after, prompts)


def _library_diff(before: Path, after: Path) -> str:
    """What each of two libraries adds to prompts."""
    from orchestry.backends.library import prompt_diff

    one, other = _one(before), _one(after)
    agents = sorted({b.agent for library in (one, other) for b in library.behaviors})
    return prompt_diff(one, other, dict.fromkeys(agents, ""))


# --- showing ------------------------------------------------------------------------------------


def _plain(path: Path, library: Library) -> dict[str, Any]:
    return {"file": str(path), **library.model_dump(mode="json")}


def _print_library(path: Path, library: Library) -> None:
    """One behaviour: a headline, its evidence, and its text, indented."""
    from rich.padding import Padding
    from rich.text import Text

    from orchestry.report.text import plain

    where = console()
    head = f"{path}: task {library.task}, model {library.model}, after update {library.update}"
    where.print(Text(plain(head), "bold"), soft_wrap=True)
    if not library.behaviors:
        where.print(Text("  nothing yet", "dim"))
    agents = max((len(b.agent) for b in library.behaviors), default=0)
    for b in library.behaviors:
        line = Text(b.id, "bold").append(f"  {plain(b.agent):{agents}}  {b.kind:7}  ", "")
        where.print(line.append(b.status, _STYLES.get(b.status, "dim")), soft_wrap=True)
        where.print(Padding.indent(Text("; ".join(_tests(b))), 4))
        where.print(Padding.indent(Text(plain(" ".join(b.text.split())), "dim"), 4))


def _tests(behavior: Behavior) -> Iterator[str]:
    """The result of its trial, the last test since, and the reason for its status."""
    from orchestry.report.text import plain

    yield str(behavior.evidence or "not tried yet")
    if behavior.retest:
        yield f"again: {behavior.retest}"
    if behavior.note:
        yield plain(" ".join(behavior.note.split()))


def _print_behavior(path: Path, behavior: Behavior) -> None:
    from rich.text import Text

    from orchestry.report.text import plain

    where = console()
    where.print(facts(*((name, plain(value)) for name, value in _facts(path, behavior))))
    where.print()
    where.print(Text(plain(behavior.text)))


def _facts(path: Path, behavior: Behavior) -> Sequence[tuple[str, str]]:
    found = [
        ("id", behavior.id),
        ("file", str(path)),
        ("agent", behavior.agent),
        ("kind", behavior.kind),
        ("status", behavior.status),
        ("born", f"update {behavior.born}"),
        ("lift", str(behavior.evidence or "not tried yet")),
    ]
    if (evidence := behavior.evidence) is not None:
        episodes = ", ".join(map(str, evidence.episodes)) or "none"
        found += [("e-value", _decided(evidence)), *_spent(evidence), ("episodes", episodes)]
    if (again := behavior.retest) is not None:
        found += [("again", str(again)), *_spent(again)]
    found += [("why", behavior.why), ("note", behavior.note)]
    return [(name, value) for name, value in found if value]


def _decided(evidence: Evidence) -> str:
    """Why a trial ended as it did; the two-sided interval does not show this."""
    if not evidence.level:
        return "none: it had no trial"
    return (
        f"{evidence.e_value:.4g}; {evidence.needed:.4g} accepts, at this trial's level of "
        f"{evidence.level:.3g}. It decides, not the 95 % interval, which is two-sided"
    )


def _spent(evidence: Evidence) -> list[tuple[str, str]]:
    return [("cost", f"{evidence.calls} calls, ${evidence.usd:.4f}")]


def _print_diff(text: str) -> None:
    from rich.text import Text

    from orchestry.report.text import plain

    styles = {"+": "green", "-": "red", "@": "cyan"}
    where = console()
    for line in plain(text).splitlines():
        style = "bold" if line.startswith(("+++", "---")) else styles.get(line[:1], "")
        where.print(Text(line, style))
