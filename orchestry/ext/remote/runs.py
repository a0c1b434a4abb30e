"""Runs on a host: begun, looked at, stopped, continued, and copied back."""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError, LockedError, OrchestryError, unknown
from orchestry.core.files import is_name, to_yaml
from orchestry.core.resolve import Mark, marks, merge, read_config_file
from orchestry.engine.changes import names_players
from orchestry.ext.remote.host import Report
from orchestry.ext.remote.remote import Each, Host
from orchestry.task.registry import bundled, find_tasks, load_task
from orchestry.task.setup import option_files
from orchestry.task.vector import run_named

VANISHED = 24
"""rsync's exit code if a file went away meanwhile."""
_TRIES = 20
"""Copies of a run that replaces its checkpoints meanwhile."""


def begin(
    host: Host,
    config: RunConfig,
    name: str,
    flags: Sequence[str],
    keys: Mapping[str, str],
    each: Each,
) -> Report:
    """Sends what a run needs and starts it, detached; returns what it did in its first seconds.

    `keys` are variables for the run's environment. Raises ConfigError if there is such a run
    already, and for a file that the config names and that can't be sent.
    """
    with tempfile.TemporaryDirectory() as place:
        sent = f"runs/{name}/remote/sent"
        stage(config, Path(place), sent, keys)
        claimed = host.ask("claim", name=name)
        if claimed["taken"] or claimed["running"]:
            raise ConfigError(
                f"{host.name} has a run '{name}': choose another --run-name, or continue it with "
                f"{shlex.join(['orchestry', 'remote', 'resume', host.name, name])}"
            )
        host.push(Path(place), sent, each)
    where = ["--config", f"{sent}/config.yaml", f"--run-dir=runs/{name}"]
    return _start(host, name, ["run", *where, "--trust", *flags], keys)


def go_on(host: Host, name: str, flags: Sequence[str], keys: Mapping[str, str]) -> Report:
    """Resumes a run there, detached."""
    known(host, [name])
    return _start(host, name, ["resume", *flags, "--trust", "--", f"runs/{name}"], keys)


def _start(host: Host, name: str, args: list[str], keys: Mapping[str, str]) -> Report:
    found: Report = host.ask(
        "start", name=name, args=["venv/bin/orchestry", *args], keys=dict(keys)
    )
    if found.get("refused"):
        raise ConfigError(f"'{name}' runs on {host.name} already")
    return found


def known(host: Host, names: Sequence[str]) -> dict[str, Any]:
    """The state of the host, with these runs or all. Raises ConfigError for one it lacks."""
    found: dict[str, Any] = host.ask("status", names=list(names))
    for run in found["runs"]:
        if not run["known"]:
            others = [one["run"] for one in host.ask("status", names=[])["runs"]]
            raise ConfigError(f"{host.name}: {unknown('run', run['run'], others)}")
    return found


def stop(host: Host, name: str, wait_s: float = 30.0) -> Report:
    """Interrupts a run there, as Ctrl-C does, so that it can be resumed."""
    known(host, [name])
    found: Report = host.ask("stop", name=name, wait_s=wait_s)
    return found


def stage(config: RunConfig, place: Path, sent: str, keys: Mapping[str, str]) -> None:
    """Puts the config and all that it names into a folder, as links. In the config, the paths are
    those that the host will have: in the folder `sent`."""
    asked = (config.task, config.task_path, config.weights, config.options)
    task = load_task(*asked, warn=lambda text: None)  # the run warns there
    files = dict[Path, str]()

    def moved(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: moved(f"{key}.{name}".lstrip("."), own) for name, own in value.items()}
        if names_players(key) and isinstance(value, list):
            return [moved(key, one) for one in value]
        path = _file_at(key, value, task.options)
        if path is None:
            return value
        path = path.resolve()  # of a checkpoint its whole run, which says what it is
        run = next((up for up in path.parents if (up / "journal.jsonl").is_file()), path)
        name = files.setdefault(run, f"{len(files)}-{run.name}")
        return (Path(sent) / name / path.relative_to(run)).as_posix()

    data = moved("", _told(config))
    location = find_tasks(config.task_path, Path.cwd())[config.task]
    data["task_path"] = []
    if location.folder is not None and location.source != "bundled":
        (place / "tasks").mkdir()
        files[location.folder] = f"tasks/{config.task}"
        data["task_path"] = [f"{sent}/tasks"]
    for path, name in files.items():
        (place / name).symlink_to(path.resolve())
    text = to_yaml(data)
    for name, key in keys.items():
        if len(key) >= 8 and key in text:
            raise ConfigError(f"the config holds the value of {name}: no config key takes a key")
    (place / "config.yaml").write_text(text, encoding="utf-8")


def _told(config: RunConfig) -> dict[str, Any]:
    """The settings that were given, and those of the backend's file, which the host would else
    take from its own copy."""
    file = bundled("configs") / f"{config.backend}.yaml"
    below = read_config_file(file) if file.is_file() else {}
    full = config.model_dump(mode="json", by_alias=True)
    return merge(_like(below, full), config.plain())


def _like(shape: Mapping[str, Any], full: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `shape` with the values of `full`."""
    return {
        key: _like(inner, full[key]) if isinstance(inner, Mapping) else full[key]
        for key, inner in shape.items()
    }


def _file_at(key: str, value: Any, options: Any) -> Path | None:
    """The file or folder here that a config key names; None for what is no path of a file here.

    Raises ConfigError if it does not exist.
    """
    section, _, name = key.partition(".")
    if section == "recipe" and name.startswith("stages."):
        return _file_at(key.split(".", 3)[3], value, options) if key.count(".") > 2 else None
    if not isinstance(value, str):
        return None
    path = Path(value).expanduser()
    if names_players(key):
        return run_named(value)
    is_path = Mark.MOVABLE in marks(RunConfig, key) or key.endswith("fake.script")
    if section == "options":  # a bank may be a name or a file
        is_path = name in option_files(options, {name: value})
    if not is_path or (not path.exists() and len(path.parts) == 1):  # a bundled library's name
        return None
    if not path.exists():
        raise ConfigError(f"config key '{key}' names {value}, which is not here: correct the path")
    return path


# --- copies ---------------------------------------------------------------------------------------


def pull(host: Host, name: str, into: Path, each: Each) -> Path:
    """Copies a run into the folder `into`, or what is new of it; never deletes anything here.

    The journal comes last, and no further than it went when the copy began, so that whatever it
    names is there, whenever the copy is cut off. Raises ConfigError if the folder here is another
    run's, or the run went on here.
    """
    if not is_name(name):
        raise ConfigError(f"{host.name} has a run called {name!r}, which is no name")
    copy, lock = into / name, FileLock(into / name / "run.lock")
    found = _begun(host, name, copy)
    try:
        with lock.acquire(timeout=0):
            for _ in range(_TRIES):
                vanished = _files(host, name, copy, each) == VANISHED
                if not vanished and all((copy / place).exists() for place in found["needed"]):
                    break
                before, found = found, _begun(host, name, copy)  # a checkpoint was replaced
                if not vanished and found == before:
                    break  # no: it is missing there too
            else:
                raise OrchestryError(
                    f"{host.name}: {name} replaces its checkpoints faster than they are copied: "
                    "stop it first, or let it keep more (learn.keep, ppo.keep)"
                )
            for place, (size, _) in found["journals"].items():
                _lengthen(host, name, copy, place, size)
    except Timeout:
        raise LockedError(f"{copy} is being written by another process: wait for it") from None
    return copy


def _begun(host: Host, name: str, copy: Path) -> dict[str, Any]:
    """What the journals there hold now; checks that the folder here holds that same run."""
    here = {path.relative_to(copy).as_posix(): path for path in copy.rglob("journal.jsonl")}
    kept = {place: _whole(path) for place, path in here.items()}
    had = {place: (len(data), hashlib.sha256(data).hexdigest()) for place, data in kept.items()}
    found: dict[str, Any] = host.ask("journals", name=name, known=had)
    sessions = copy / "remote" / "sessions.jsonl"
    elsewhere = "copy it elsewhere with --into DIR"
    if not copy.exists():
        try:
            sessions.parent.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"{copy} can't be made ({error.strerror}): {elsewhere}") from None
        sessions.write_text(found["first"] + "\n")
    elif not sessions.exists() or sessions.read_text().splitlines()[:1] != [found["first"]]:
        raise ConfigError(f"{copy} here is another run than '{name}' of {host.name}: {elsewhere}")
    for place, (_, same) in found["journals"].items():
        if not (copy / place).resolve().is_relative_to(copy.resolve()):
            raise ConfigError(f"{host.name} names a file outside of the run: {place!r}")
        if not same:
            raise ConfigError(
                f"{copy / place} has other lines than on {host.name}, so that run was continued "
                f"here: {elsewhere}"
            )
    return found


def _whole(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]


def _files(host: Host, name: str, copy: Path, each: Each) -> int:
    """Copies all but the journals; returns rsync's exit code, 0 or VANISHED."""
    ours = ("journal.jsonl", "journal.head", "run.lock", "/remote/lock", "__pycache__")
    args = [*(f"--exclude={one}" for one in ours), host.at(f"runs/{name}/"), f"{copy}/"]
    code, errors = host.rsync(args, each)
    if code not in (0, VANISHED):
        raise host.fault(code, errors)
    return code


def _lengthen(host: Host, name: str, copy: Path, place: str, size: int) -> None:
    """Appends to a journal here what it lacks up to that size."""
    path = copy / place
    path.parent.mkdir(parents=True, exist_ok=True)
    had = len(_whole(path)) if path.exists() else 0
    file = shlex.quote(f"{host.folder}/runs/{name}/{place}")
    script = f"tail -c +{had + 1} -- {file} | head -c {size - had}"
    with path.open("ab") as end:
        os.truncate(path, had)
        code, _, errors = host.call(host.ssh("sh -s"), script.encode(), end.write)
    if path.stat().st_size > size:  # a login script's words at the session's end
        os.truncate(path, size)
    if code or path.stat().st_size != size:
        raise host.fault(code, errors)
