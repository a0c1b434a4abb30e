"""A real ssh server on loopback, as a process of its own, with its own keys."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
PROGRAMS = {
    name: shutil.which(name, path=PLACES) for name in ("ssh", "sshd", "ssh-keygen", "rsync")
}
MISSING = ", ".join(name for name, found in PROGRAMS.items() if found is None)
needs_ssh = pytest.mark.skipif(
    bool(MISSING), reason=f"{MISSING} not installed: apt-get install openssh-server rsync"
)
CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
SetEnv {environ}
"""
ENVIRON = (
    "PIP_NO_INDEX=1 PIP_CONFIG_FILE=/dev/null XDG_CACHE_HOME={0}/cache XDG_STATE_HOME={0}/state"
)
"""Of what runs there: no index of packages, and nothing of this user's."""


@dataclass(frozen=True)
class Server:
    """A server that lets the key `user` in."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    def entry(self, **more: object) -> dict[str, object]:
        """What remote.yaml says of it."""
        known, key = self.folder / "known hosts", self.folder / "user"
        options = [f"UserKnownHostsFile='{known}'", f"IdentityFile={key}", f"Port={self.port}"]
        options += ["IdentitiesOnly=yes", "GlobalKnownHostsFile=none"]
        return {"address": "127.0.0.1", "ssh_options": options, **more}

    def cut(self) -> None:
        """Ends all of its connections, as a lost network would; the server stays."""
        for session in children(self.process.pid):
            for one in [*children(session), session]:
                if b"sshd" in Path(f"/proc/{one}/comm").read_bytes():
                    os.kill(one, 9)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in found.split()]


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Runs a server until the block ends."""
    for name in ("host", "user"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(keygen, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = CONFIG.format(port=port, folder=folder, environ=ENVIRON.format(folder))
    (folder / "sshd_config").write_text(config)
    key = (folder / "host.pub").read_text()
    (folder / "known hosts").write_text(f"[127.0.0.1]:{port} {key}")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # which a root's sshd asks for
    command = [str(PROGRAMS["sshd"]), "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        _await(port, process, folder / "sshd.log")
        yield Server(folder, port, process)
    finally:
        process.kill()
        process.wait()


def _await(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(log.read_text())


def equip(folder: Path) -> None:
    """What `orchestry remote setup` leaves there, of this very code and its dependencies, without
    the minute that pip takes."""
    (folder / "runs").mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    borrow(folder, ROOT)
    shebang = f"#!/bin/sh\n'''exec' \"{folder}/venv/bin/python\" \"$0\" \"$@\"\n' '''\n"
    for module, main in (("orchestry.cli", "main"), ("tensorboard.main", "run_main")):
        script = folder / "venv" / "bin" / module.partition(".")[0]
        script.write_text(f"{shebang}from {module} import {main}\n{main}()\n")  # as pip writes it
        script.chmod(0o755)
    setup = '{"since": %d, "wheel": "", "extras": []}\n'
    (folder / "setup.json").write_text(setup % (time.time() - 7200))


def borrow(folder: Path, *more: Path) -> None:
    """Lets the environment there import what is installed here."""
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    paths = [*more, Path(sysconfig.get_path("purelib"))]
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in paths))


def write_remote(**hosts: object) -> None:
    """remote.yaml of the working folder."""
    Path("remote.yaml").write_text(yaml.safe_dump(hosts))
