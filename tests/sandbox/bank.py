"""The hostile bank: its cases, and harmless targets of the test's own that they attack."""

from __future__ import annotations

import http.server
import json
import os
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.cli.sandbox import Program, read_programs
from orchestry.core.types import Limits

FOLDER = Path(__file__).parent / "hostile"
PROJECT = Path(__file__).parents[2]
SECRET = "hostile-bank-secret-31337"
KEY = "HOSTILE_BANK_API_KEY"
KEPT = "keep"
MEGABYTE = "1, " * 350_000
SHARED_MEMORY = Path("/dev/shm")
VICTIM = "import time\ntext = b'x' * 64\nprint(id(text), flush=True)\ntime.sleep(3600)"


@dataclass(frozen=True)
class Case:
    """One attack or control."""

    id: str
    theme: str
    code: str
    entry_point: str
    tests: list[Any]
    wall_s: float
    expect: list[str]
    """Verdicts that are right at levels 1 and 2."""
    teeth: bool
    """Whether the attack succeeds where nothing confines it, so that its verdict changes."""
    why: str
    root: bool = False
    """Its teeth need a host that runs as root."""
    danger: bool = False
    """Tried only once harmless attacks of its kind were seen to fail."""


def cases() -> list[Case]:
    """The whole bank. Raises TypeError for a case of another shape."""
    files = sorted(FOLDER.glob("*.jsonl"))
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    return [Case(**json.loads(line)) for line in lines]


@dataclass(frozen=True)
class Targets:
    """What the cases' placeholders stand for."""

    folder: Path
    names: dict[str, object]

    def program(self, case: Case) -> Program:
        """The case as a line of `orchestry sandbox run`, its placeholders filled in."""
        own = self.folder / "own" / case.id
        names = {**self.names, "own": own, "token": f"hostile-{os.getpid()}-{case.id}"}
        code = case.code
        for name, value in names.items():
            code = code.replace(f"{{{name}}}", str(value))
        line: dict[str, Any] = {"id": case.id, "code": code, "entry_point": case.entry_point}
        line |= {"tests": case.tests, "wall_s": case.wall_s}
        (program,) = read_programs([json.dumps(line).encode()], "bank", Limits(), cpu=False)
        return program

    def lay(self, bank: Sequence[Case]) -> None:
        """A folder with one file for each case, as it was before any attack."""
        for case in bank:
            own = self.folder / "own" / case.id
            own.mkdir(parents=True, exist_ok=True)
            (own / "file").write_text(KEPT)
            (own / "file").chmod(0o644)

    def harmed(self) -> list[str]:
        """What of the cases' folders is not as it was laid, and what lies elsewhere."""
        own, laid = self.folder / "own", [("file", len(KEPT), 0o644)]
        harmed = [path.name for path in own.iterdir() if _seen(path) != laid]
        places = [Path(self.folder), SHARED_MEMORY, Path("/tmp")]
        left = [p for place in places for p in place.glob(f"hostile-{os.getpid()}-*")]
        left += [*Path.cwd().iterdir(), *Path(tempfile.gettempdir()).iterdir()]
        return harmed + [str(path) for path in left]


def _seen(folder: Path) -> list[tuple[str, int, int]]:
    found = [(path.name, path.lstat()) for path in sorted(folder.iterdir())]
    return [(name, stat.st_size, stat.st_mode & 0o777) for name, stat in found]


@contextmanager
def targets(folder: Path) -> Iterator[Targets]:
    """Files, servers on loopback and another process, all of them the test's own."""
    names: dict[str, object] = {
        "host_pid": os.getpid(),
        "project": PROJECT,
        "bank": FOLDER / "files.jsonl",
        "library": Path(os.__file__).parent,
        "shm": SHARED_MEMORY,
        "megabyte": MEGABYTE,
        **_plant(folder / "secrets"),
    }
    with ExitStack() as stack:
        victim = stack.enter_context(_victim())
        names["victim_pid"], names["victim_address"] = victim
        names |= _serve(folder, stack)
        yield Targets(folder, names)


def _plant(folder: Path) -> dict[str, object]:
    """Files that are nobody's business."""
    (folder / "parcel").mkdir(parents=True)
    (folder / "parcel" / "__init__.py").write_text("")
    (folder / "parcel" / "secret.txt").write_text("stolen")
    (folder / "secret.txt").write_text("stolen")
    (folder / "planted.py").write_text("SECRET = 'stolen'\n")
    (folder / "link").symlink_to(folder / "secret.txt")
    with zipfile.ZipFile(folder / "secret.zip", "w") as archive:
        archive.writestr("inner.txt", "stolen")
    files = {"file": "secret.txt", "py": "planted.py", "zip": "secret.zip", "link": "link"}
    found: dict[str, object] = {f"secret_{key}": folder / name for key, name in files.items()}
    return {"secret_dir": folder, **found}


@contextmanager
def _victim() -> Iterator[tuple[int, int]]:
    """A process that sleeps, with a secret in its environment; its number, and an address in it."""
    command = [sys.executable, "-c", VICTIM]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={KEY: SECRET}, start_new_session=True
    ) as victim:
        assert victim.stdout is not None
        try:
            yield victim.pid, int(victim.stdout.readline())
            assert victim.poll() is None, "an attack ended another process"
        finally:
            victim.kill()


class _Greeter(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):
            self.request.sendall(b"stolen")


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        with suppress(OSError):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"stolen")

    def log_message(self, *args: object) -> None:
        """Nothing: stderr is the test's."""


def _serve(folder: Path, stack: ExitStack) -> dict[str, object]:
    """Servers that greet whoever comes; where they are."""
    loopback = ("127.0.0.1", 0)
    tcp = socketserver.TCPServer(loopback, _Greeter)
    page = http.server.HTTPServer(loopback, _Page)
    path, abstract = str(folder / "socket"), f"hostile-{os.getpid()}"
    unix = socketserver.UnixStreamServer(path, _Greeter)
    unseen = socketserver.UnixStreamServer(f"\0{abstract}", _Greeter)
    udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    udp.bind(loopback)
    for server in (tcp, page, unix, unseen):
        stack.enter_context(server)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
    ports = {"port": tcp.server_address[1], "http_port": page.server_address[1]}
    udp_port = udp.getsockname()[1]
    return {**ports, "udp_port": udp_port, "unix_path": path, "abstract": abstract}
