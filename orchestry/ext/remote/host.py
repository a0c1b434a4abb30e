"""The half of `orchestry remote` that works on the host.

Its source is sent over ssh with each order, and that of core.probe. So it imports only the standard
library besides, and needs no version of ours. A run lies in runs/NAME. Its folder `remote` holds
what was sent, what the run printed (`log`), when it was started and how it ended
(`sessions.jsonl`), and a lock that is held for as long as it lives: a process id alone could be
another process's by now.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestry.core.probe import free_port, gpus

RUNS = Path("runs")
SOON_S = 4.0
"""A run that ends within this time could not begin: the order waits for it, and says why."""
LONGEST = 300
"""Characters of a log's last line."""
MARK = "@orchestry "
"""Begins the line of an answer: login scripts print lines of their own."""
Report = dict[str, Any]


def main(order: dict[str, Any]) -> None:
    """Does one order in the working folder; prints the answer as one line."""
    os.umask(0o077)
    given: dict[str, Any] = order["given"]
    known: dict[str, Callable[..., Any]] = {
        "claim": claim,
        "start": start,
        "status": status,
        "stop": stop,
        "journals": journals,
        "free_port": free_port,
        "serve": serve,
    }
    say(known[order["do"]](**given))


def say(answer: Any) -> None:
    """Prints JSON in a line of its own."""
    sys.stdout.write(f"{MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()


# --- starting and stopping ------------------------------------------------------------------------


def claim(name: str) -> Report:
    """Makes the folder that takes what a new run needs; empty, unless there is such a run."""
    sent, found = RUNS / name / "remote" / "sent", report(RUNS / name)
    if not found["taken"] and not found["running"]:
        shutil.rmtree(sent, ignore_errors=True)  # of one that could not begin
    sent.mkdir(parents=True, exist_ok=True)
    return found


def start(name: str, args: list[str], keys: Mapping[str, str]) -> Report:
    """Starts a process that outlives this connection; returns once it has begun, or failed to."""
    run = RUNS / name
    if (lock := _held(run)) is None:
        return {**report(run), "refused": True}
    before = len(_sessions(run))
    if os.fork() == 0:
        try:
            _supervise(run, args, keys, lock)
        finally:
            os._exit(0)
    os.close(lock)  # the other process still holds it
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline and len(_sessions(run)) < before + 2:
        time.sleep(0.1)
    return report(run)


def _supervise(run: Path, args: list[str], keys: Mapping[str, str], lock: int) -> None:
    """Runs the command in a session of its own and notes how it ends. Keys reach only its
    environment."""
    os.setsid()
    log = os.open(run / "remote" / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they end the run, not its notes
        signal.signal(number, lambda *_: None)
    _note(run, {"started": time.time(), "group": os.getpid()})
    code = 127
    try:
        code = subprocess.Popen(args, env={**os.environ, **keys}, pass_fds=[lock]).wait()
    except OSError as error:
        os.write(log, f"{error}\n".encode())
    _note(run, {"ended": time.time(), "code": code})


def stop(name: str, wait_s: float) -> Report:
    """Sends what Ctrl-C sends to the run's own processes, and waits for their end."""
    run = RUNS / name
    if not _running(run):
        return {**report(run), "refused": True}
    with suppress(ProcessLookupError):  # it has just ended
        os.killpg(next(s["group"] for s in reversed(_sessions(run)) if "group" in s), signal.SIGINT)
    deadline = time.monotonic() + wait_s
    while _running(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    return report(run)


def _held(run: Path) -> int | None:
    """The run's lock; None while another process holds it."""
    lock = os.open(run / "remote" / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _running(run: Path) -> bool:
    if not (run / "remote" / "lock").exists():
        return False
    if (lock := _held(run)) is not None:
        os.close(lock)
    return lock is None


def _note(run: Path, event: Mapping[str, float]) -> None:
    """Appends a line, also behind one that a full disk cut off."""
    path = run / "remote" / "sessions.jsonl"
    whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
    with path.open("a") as file:
        file.write(("" if whole else "\n") + json.dumps(event) + "\n")


def _sessions(run: Path) -> list[dict[str, Any]]:
    """What was noted, without lines that were cut off."""
    path, found = run / "remote" / "sessions.jsonl", list[dict[str, Any]]()
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


# --- looking --------------------------------------------------------------------------------------


def status(names: list[str]) -> dict[str, Any]:
    """The named runs, or all; what the machine's GPUs do; and since when it is set up."""
    begun = (path.parents[1] for path in RUNS.glob("*/remote/sessions.jsonl"))
    all_names = sorted(run.name for run in begun if _sessions(run))
    cards, fault = gpus(("name", "utilization.gpu", "memory.used", "memory.total"))
    return {
        "now": time.time(),
        "setup": json.loads(Path("setup.json").read_text()),
        "gpus": cards,
        "gpus_fault": fault,
        "runs": [report(RUNS / name) for name in names or all_names],
    }


def report(run: Path) -> Report:
    """One run: whether it runs, how it ended, how long it ran, what it wrote last."""
    sessions, running = _sessions(run), _running(run)
    ended = sessions[-1] if sessions else {}
    return {
        "run": run.name,
        "known": bool(sessions),
        "taken": any(path.name != "remote" for path in run.glob("*")),
        "running": running,
        "code": None if running else ended.get("code"),
        "started": max((s["started"] for s in sessions if "started" in s), default=0.0),
        "seconds": _seconds(run, sessions, running),
        "last": _last_line(run / "remote" / "log"),
        "learned": _learned(run),
    }


def _seconds(run: Path, sessions: list[dict[str, Any]], running: bool) -> float:
    """How long it ran, over all its sessions. One that was killed lasted until its last words."""
    total, begun = 0.0, 0.0
    for event in sessions:
        if "ended" in event and begun:
            total += event["ended"] - begun
        begun = float(event.get("started", 0.0))
    if begun:
        total -= begun
        total += time.time() if running else (run / "remote" / "log").stat().st_mtime
    return total


def _last_line(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 10_000))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:LONGEST]


def _learned(run: Path) -> dict[str, Any] | None:
    """The last update in the run's journal, or in that of a recipe's last stage."""
    found = [*run.glob("journal.jsonl"), *run.glob("stages/*/journal.jsonl")]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
        with _mapped(path) as data:
            if event := _last_update(data):
                state = {key: event["state"].get(key) for key in ("checkpoint", "steps")}
                return {"update": event["update"], "at": event["at"], **state}
    return None


def _last_update(data: mmap.mmap | bytes) -> dict[str, Any] | None:
    """The last update that a journal holds in a whole line."""
    begin = data.rfind(b'{"kind":"learned"', 0, max(data.rfind(b"\n"), 0))
    if begin < 0:
        return None
    found: dict[str, Any] = json.loads(data[begin : data.find(b"\n", begin)])
    return found


# --- copying and showing --------------------------------------------------------------------------


def journals(name: str, known: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    """Bytes of each journal up to its last whole line, and whether it begins with what the copy
    has: so many bytes, of that SHA-256. `needed`: the last checkpoints that they name."""
    run, found, needed = RUNS / name, dict[str, tuple[int, bool]](), list[str]()
    for path in run.rglob("journal.jsonl"):
        place = path.relative_to(run).as_posix()
        size, digest = known.get(place, (0, hashlib.sha256().hexdigest()))
        with _mapped(path) as data:
            same = hashlib.sha256(data[:size]).hexdigest() == digest
            found[place] = data.rfind(b"\n") + 1, same
            last = _last_update(data)
        if last and last["state"].get("checkpoint"):
            needed.append((path.parent / last["state"]["checkpoint"]).relative_to(run).as_posix())
    first = (run / "remote" / "sessions.jsonl").read_text().splitlines()[0]
    return {"first": first, "journals": found, "needed": needed}


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """The bytes of a file that may be large, and may grow meanwhile."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:  # which can't be mapped
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def serve(commands: list[list[str]], port: int) -> dict[str, Any]:
    """Runs commands; the last one is a server, which ends with the connection. A line tells when
    it answers."""
    for command in commands[:-1]:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            return {"failed": done.stderr.strip()}
    with tempfile.TemporaryFile() as errors:
        quiet = subprocess.DEVNULL
        try:
            server = subprocess.Popen(
                commands[-1], stdin=quiet, stdout=quiet, stderr=errors, start_new_session=True
            )
        except OSError as error:
            return {"failed": str(error)}
        try:
            while server.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    say({"ready": port})
                    sys.stdin.read()  # until the connection ends
                    return {}
                time.sleep(0.1)
            errors.seek(0)
            return {"failed": errors.read().decode(errors="replace").strip()}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            server.wait()
