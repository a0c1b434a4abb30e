"""Runs on a machine of the user's, over plain ssh and rsync.

An order is one ssh command, whose stdin carries `host.py` and what to do: a key stands on no
command line. What a run needs is sent into its own folder, so that the pulled run finds it too.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import Field, ValidationError

from orchestry.core import probe
from orchestry.core.errors import ConfigError, OrchestryError
from orchestry.core.files import is_run, read_yaml
from orchestry.core.resolve import explain_fault
from orchestry.core.types import Frozen
from orchestry.ext.remote import host as there
from orchestry.ext.remote.wheel import pack

FILE = Path("remote.yaml")
"""Settings by host, in the working folder."""
Shell = Callable[[Sequence[str], IO[bytes]], "subprocess.Popen[bytes]"]
"""Starts a command with pipes for stdin and stdout; stderr goes to the file."""
Each = Callable[[str], None]
"""Told each line that a long command prints."""
_BOOT = """
import json, sys, types
order = json.loads(sys.stdin.readline())
for name, source in order.pop("modules").items():
    sys.modules[name] = module = types.ModuleType(name)
    exec(source, module.__dict__)
module.main(order)
"""
_ENTER = """cd -- "$0" 2>/dev/null && [ -x venv/bin/python ] && exec venv/bin/python -c "$1"
echo "no venv/bin/python in $0" >&2; exit 1"""
_OURS = ("ConnectTimeout=20", "ServerAliveInterval=15", "ServerAliveCountMax=4")
_SSH = {
    "Could not resolve": "check the name, or give it an entry in ~/.ssh/config",
    "Connection refused": "check that its ssh server runs, and the port (-p)",
    "timed out": "check that the machine runs and still has this address",
    "No route": "check that the machine runs and still has this address",
    "Permission denied (": "add your public key there (ssh-copy-id), or name the key: "
    "--ssh-option IdentityFile=PATH",
    "Host key verification failed": "connect once with `ssh` by hand, and compare the fingerprint",
    "onfiguration option": "--ssh-option takes what `ssh -o` takes, such as IdentityFile=PATH",
    "keyword": "--ssh-option takes what `ssh -o` takes, such as IdentityFile=PATH",
    "Address already in use": "choose another --local-port",
}
_THERE = {
    "venv/bin/python": "there is no orchestry yet: `orchestry remote setup HOST`",
    "setup.json": "its setup was cut off: `orchestry remote setup HOST` goes on",
    "venv/bin/tensorboard": "`orchestry remote setup HOST --extra tensorboard` installs it",
    "ensurepip is not": "install python3-venv there, or name another Python: --python PATH",
    "No space left": "make room on the disk that is full, then give the same command again",
    "rsync: command not found": "install rsync there, such as by `apt-get install rsync`",
}
"""Fixes by a part of what ssh says, or else a program there."""
_CUT_OFF = (255, 10, 12, 20, 30, 35)
"""Exit codes of ssh, and of rsync, when the connection or a process at one end was lost (rsync(1),
EXIT VALUES). rsync's two processes print in any order, so what they say doesn't tell."""


class HostConfig(Frozen):
    """One entry of remote.yaml."""

    address: str | None = None
    """USER@HOST, or a name of ~/.ssh/config. None: the entry's own name."""
    folder: str = Field("orchestry-remote", min_length=1)
    """Folder there, in the home directory unless it begins with a slash."""
    usd_per_hour: float | None = Field(None, ge=0.0, allow_inf_nan=False)
    """Price of the machine."""
    remind_after_hours: float = Field(12.0, gt=0.0)
    """Hours since `setup` after which a reminder says that the machine still costs."""
    ssh_options: tuple[str, ...] = ()
    """As `ssh -o` takes them, such as Port=2222."""


def shell(command: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts a command. Raises ConfigError if it is not installed here, or can't take its words."""
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors)
    except FileNotFoundError:
        raise ConfigError(
            f"{command[0]} is not installed here: install openssh-client and rsync"
        ) from None
    except ValueError as error:  # remote.yaml can write a NUL
        raise ConfigError(f"{command[0]} can't be started ({error}): correct {FILE}") from None


def connect(
    name: str, options: Sequence[str] = (), port: int | None = None, shell: Shell = shell
) -> Host:
    """A host by its address, its name in ~/.ssh/config, or its entry in ./remote.yaml.

    Nothing is sent yet. Raises ConfigError for a faulty name or file.
    """
    if FILE.exists() and is_run(FILE.absolute().parent):
        raise ConfigError(
            f"{FILE} lies in the folder of a run, and may start programs of whoever made that run: "
            "give the command in another folder"
        )
    try:
        raw = read_yaml(FILE)
    except FileNotFoundError:
        raw = {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{FILE} can't be read ({' '.join(str(error).split())})") from None
    try:
        config = HostConfig.model_validate(raw.get(name) or {})
    except ValidationError as error:
        why = "; ".join(explain_fault(fault, HostConfig) for fault in error.errors())
        raise ConfigError(f"{FILE}, {name}: {why}") from None
    address = config.address or name
    if not address or address.startswith("-") or set(address) & set(" \t\n/"):
        raise ConfigError(f"{address!r} is no host: give USER@HOST or a name of ~/.ssh/config")
    own = [] if port is None else [f"-p{port}"]
    ours = (*_OURS, *([] if sys.stdin.isatty() else ["BatchMode=yes"]))  # the first one counts
    every = (*options, *config.ssh_options, *ours)
    return Host(name, address, config, (*own, *(f"-o{one}" for one in every)), shell)


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that ssh reaches."""

    name: str
    """As the user calls it."""
    address: str
    config: HostConfig
    options: tuple[str, ...]
    """Of each ssh command."""
    shell: Shell

    @property
    def folder(self) -> str:
        """The folder there; ssh begins in the home directory."""
        return self.config.folder.removeprefix("~/")

    def ask(self, do: str, **given: Any) -> Any:
        """The answer to an order of host.py."""
        code, out, errors = self.call(self.ssh(self.boot), self.order(do, given))
        if code:
            raise self.fault(code, errors)
        return self.answer(out.splitlines())

    def answer(self, lines: Iterable[bytes]) -> Any:
        """What host.py said in these lines: the first that is its own. Raises OrchestryError if
        none is."""
        said = list[str]()
        for line in lines:
            text = line.decode(errors="replace")
            if text.startswith(there.MARK):
                return json.loads(text.removeprefix(there.MARK))
            said.append(text.strip())
        raise OrchestryError(
            f"{self.name}: found {' ... '.join(said)[:300]!r} in place of an answer: does its "
            "login script end the session, or print without a line's end?"
        )

    def order(self, do: str, given: Mapping[str, Any]) -> bytes:
        """What the host's Python reads."""
        modules = {one.__name__: inspect.getsource(one) for one in (probe, there)}
        order = {"do": do, "given": given, "modules": modules}
        return json.dumps(order).encode() + b"\n"

    @property
    def boot(self) -> str:
        """The command that takes an order; `sh`, since a login shell may be any."""
        return shlex.join(["sh", "-c", _ENTER, self.folder, _BOOT])

    def script(self, text: str, *args: str, each: Each | None = None) -> str:
        """What a shell script prints there, given the folder and these arguments. With `each`,
        lines are told as they come."""
        sink = None if each is None else _lines(each)
        command = self.ssh(shlex.join(["sh", "-s", "--", self.folder, *args]))
        code, out, errors = self.call(command, text.encode(), sink)
        if code:
            raise self.fault(code, errors)
        return out.decode(errors="replace")

    def push(self, source: Path, target: str, each: Each) -> None:
        """Copies a folder's content into a folder there; links are followed."""
        ours = ("-L", "--exclude=__pycache__")
        code, errors = self.rsync([*ours, f"{source}/", self.at(f"{target}/")], each)
        if code:
            raise self.fault(code, errors)

    def rsync(self, args: Sequence[str], each: Each) -> tuple[int, str]:
        """Runs rsync; an interrupted file is continued by the next call."""
        remote = shlex.join(["ssh", *self.options])
        ours = ["-rts", "--partial-dir=.rsync-partial", "--info=progress2", "-e", remote]
        code, _, errors = self.call(["rsync", *ours, *args], sink=_lines(each))
        return code, errors

    def at(self, path: str) -> str:
        """A path in the folder there, as rsync names it."""
        user, _, host = self.address.rpartition("@")
        host = f"[{host}]" if ":" in host else host
        return f"{user}{'@' if user else ''}{host}:{self.folder}/{path}"

    def ssh(self, command: str, *more: str) -> list[str]:
        """The ssh command for a command there."""
        return ["ssh", *self.options, *more, "--", self.address, command]

    def call(
        self,
        command: Sequence[str],
        given: bytes = b"",
        sink: Callable[[bytes], object] | None = None,
    ) -> tuple[int, bytes, str]:
        """Exit code, stdout (b"" if a sink takes it) and stderr of a command."""
        with tempfile.TemporaryFile() as errors, self.shell(command, errors) as process:
            assert process.stdin is not None
            assert isinstance(process.stdout, io.BufferedReader)
            try:
                process.stdin.write(given)
                process.stdin.close()
            except BrokenPipeError:
                pass  # it has ended, and says why
            chunks = list[bytes]()
            while chunk := process.stdout.read1():
                (sink or chunks.append)(chunk)
            code = process.wait()
            errors.seek(0)
            return code, b"".join(chunks), errors.read().decode(errors="replace")

    def fault(self, code: int, errors: str) -> OrchestryError:
        """The error for a failed command: its cause, and the fix if it is a known one."""
        lines = [line.strip(" .\r") for line in errors.splitlines() if line.strip(" @\r")]
        for said, fix in (_SSH if code == 255 else _THERE).items():
            if found := next((line for line in lines if said in line), None):
                return ConfigError(f"{self.name}: {found}: {fix.replace('HOST', self.name)}")
        said = " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]])) or f"exit code {code}"
        if code in _CUT_OFF:
            said += ": the connection ended; the same command goes on where it was"
        return OrchestryError(f"{self.name}: {said}")


def _lines(each: Each) -> Callable[[bytes], None]:
    """Takes chunks, tells whole lines; a carriage return ends one too."""
    rest = bytearray()

    def sink(chunk: bytes) -> None:
        rest.extend(chunk)
        *whole, last = bytes(rest).replace(b"\r", b"\n").split(b"\n")
        rest[:] = last
        for line in whole:
            if text := line.decode(errors="replace").rstrip():
                each(text)

    return sink


# --- setup ----------------------------------------------------------------------------------------

_VENV = """set -eu
command -v rsync >/dev/null || { echo "rsync: command not found" >&2; exit 1; }
umask 077
mkdir -p -- "$1/runs"
cd -- "$1"
mark=$2 shared=$3 named=$4
shift 4
origin='import sys; print(sys.base_prefix, sys.version_info)'
if venv/bin/python -m pip --version >/dev/null 2>&1; then
    odd=
    [ -n "$shared" ] && ! grep -q 'site-packages = true' venv/pyvenv.cfg && odd=1
    [ -n "$named" ] && [ "$("$named" -c "$origin")" != "$(venv/bin/python -c "$origin")" ] && odd=1
    if [ -n "$odd" ]; then
        echo "the environment there was made otherwise: remove its folder venv first" >&2
        exit 1
    fi
else
    for python; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
        python=
    done
    if [ -z "$python" ]; then
        echo "no Python 3.11 or newer there among $*: install one, or name it: --python PATH" >&2
        exit 1
    fi
    "$python" -m venv $shared venv >&2
fi
printf '%s[%s, %s]\n' "$mark" "$(date +%s)" "$(cat setup.json 2>/dev/null || echo null)"
"""
_INSTALL = """set -eu
cd -- "$1"
pip="venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off"
$pip --force-reinstall --no-deps "./$2"
$pip "./$2$3"
rm -f "./$2"
"""
_FINISH = """cd -- "$1"
printf '%s\\n' "$2" >setup.json.new && mv setup.json.new setup.json
venv/bin/python -c 'import torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
print("torch", torch.__version__, "finds", gpu)' 2>/dev/null
if ! venv/bin/orchestry doctor 2>&1; then
    echo "orchestry doctor found something broken" >&2
    exit 1
fi
"""
_PYTHONS = ["python3", *(f"python3.{minor}" for minor in range(14, 10, -1))]


def set_up(host: Host, extras: Sequence[str], python: str | None, shared: bool, each: Each) -> None:
    """Makes the environment there, with the orchestry that runs here, and lets it examine the
    machine. What is there already is kept, so it can be repeated. `shared`: with the packages of
    the machine's own Python, such as its torch.

    Raises OrchestryError if pip fails there, or if `orchestry doctor` finds something broken;
    ConfigError if it would replace the code of a run that is going on.
    """
    name, wheel = pack(extras)
    flag = "--system-site-packages" if shared else ""
    pythons = [python] if python else _PYTHONS
    said = host.script(_VENV, there.MARK, flag, python or "", *pythons)
    at, before = host.answer(said.encode().splitlines())
    was: dict[str, Any] = before or {"since": at, "wheel": "", "extras": []}
    digest, wanted = hashlib.sha256(wheel).hexdigest(), sorted({*extras, *was["extras"]})
    if (was["wheel"], was["extras"]) != (digest, wanted):
        there_now = host.ask("status", names=[])["runs"] if before else []
        for run in there_now:
            if run["running"]:
                raise ConfigError(
                    f"{host.name} runs {run['run']} with an older orchestry than is here: wait for "
                    "its end, or stop it, then repeat this"
                )
        _install(host, name, wheel, wanted, each)
    setup = json.dumps({**was, "wheel": digest, "extras": wanted})
    host.script(_FINISH, setup, each=each)


def _install(host: Host, name: str, wheel: bytes, extras: Sequence[str], each: Each) -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / name).write_bytes(wheel)
        host.push(Path(place), ".", lambda line: None)
    asked = f"[{','.join(extras)}]" if extras else ""
    had = "Requirement already satisfied"
    host.script(
        _INSTALL, name, asked, each=lambda line: None if line.startswith(had) else each(line)
    )


# --- what it costs --------------------------------------------------------------------------------


def usd(host: Host, seconds: float) -> float | None:
    """What the machine costs in that time; None if remote.yaml has no price."""
    price = host.config.usd_per_hour
    return None if price is None else price * seconds / 3600


def reminders(host: Host, found: Mapping[str, Any]) -> list[str]:
    """Why the machine should be stopped, if it should."""
    hours, limit = (found["now"] - found["setup"]["since"]) / 3600, host.config.remind_after_hours
    price = host.config.usd_per_hour
    costs = "still costs" if price is None else f"still costs ${price:g} an hour"
    notes = []
    if not any(run["running"] for run in found["runs"]):
        sync = shlex.join(["orchestry", "remote", "sync", host.name])
        notes.append(f"nothing runs on {host.name}, which {costs}: `{sync}`, then stop it")
    if hours > limit:
        notes.append(
            f"{host.name} was set up {hours:.3g} hours ago, more than {limit:g} "
            f"(remind_after_hours), and {costs}"
        )
    return notes


@contextmanager
def forward(
    host: Host, what: str, name: str, port: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    """The report's page, or TensorBoard, of a run there, while the block lasts: an address here,
    and a function that waits until the connection ends.

    Raises OrchestryError if it can't be served there, or this port can't be had.
    """
    far = host.ask("free_port")
    run = f"runs/{name}"
    served = f"--directory={run}/report"
    commands = {
        "page": [
            ["venv/bin/orchestry", "report", "--", run],
            ["venv/bin/python", "-m", "http.server", "--bind=127.0.0.1", served, str(far)],
        ],
        "tensorboard": [
            ["venv/bin/tensorboard", f"--logdir={run}", "--host=127.0.0.1", f"--port={far}"]
        ],
    }
    tunnel = ("-oExitOnForwardFailure=yes", f"-L127.0.0.1:{port}:127.0.0.1:{far}")
    order = host.order("serve", {"commands": commands[what], "port": far})
    with tempfile.TemporaryFile() as errors:
        process = host.shell(host.ssh(host.boot, *tunnel), errors)
        with process:  # its end closes the pipe, which ends the server there
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.write(order)
                process.stdin.flush()
            mark = there.MARK.encode()
            if not (line := next((one for one in process.stdout if one.startswith(mark)), b"")):
                code = process.wait()
                errors.seek(0)
                raise host.fault(code, errors.read().decode(errors="replace"))
            if "failed" in (said := host.answer([line])):
                raise host.fault(1, said["failed"])
            yield f"http://127.0.0.1:{port}/", process.wait
