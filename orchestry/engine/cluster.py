"""A Ray cluster: our processes and sandbox servers on other machines (extra `ray`).

An actor holds one of them, so a lost machine shows as dead actors: a sandbox run is then played
elsewhere, a run of a sweep is resumed, and a launch ends. What is sent is code to be confined,
and commands of ours; API keys are never sent, each machine has its own environment.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestry import __version__
from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, SandboxError, reason
from orchestry.core.executor import Job, Lost, Needs, environs
from orchestry.core.machine import PARENT
from orchestry.core.sandboxed import Limits
from orchestry.engine.executors import COMMAND, END_S, Launched, launching
from orchestry.sandbox import ForkServers
from orchestry.sandbox.pool import Server, start_server
from orchestry.sandbox.worker import Ended, Unavailable

_GLOO, _SIOCGIFADDR = "GLOO_SOCKET_IFNAME", 0x8915
_STARTED = Path("/tmp/ray/ray_current_cluster")  # noqa: S108 - as Ray itself does
ROOM_S = 120.0
"""How long a process may wait for a free place in the cluster."""


class Cluster:
    """The executor `ray`."""

    def __init__(self, address: str) -> None:
        """Connects to Ray's head at `ray://HOST:PORT`, or to the cluster of this machine if it is
        ''. Raises ConfigError if Ray is not installed, or there is no cluster."""
        self._ray, self._head = _connected(address), address

    def at_once(self, needs: Needs) -> int:
        """See Executor."""
        whole: Mapping[str, float] = self._ray.cluster_resources()
        found = whole.get("CPU", 0) // needs.cpus
        if gpus := self._gpus(needs):
            found = min(found, whole.get("GPU", 0) // gpus)
        return max(1, int(found))

    def start(self, args: Sequence[str], log: Path, needs: Needs) -> Job:
        """See Executor."""
        job = FarJob(self._ray, self._actor(Host, needs))
        job.begin(args, {}, log.resolve())
        return job

    @contextmanager
    def launch(self, count: int, needs: Needs) -> Iterator[None]:
        """See Executor."""

        def started(count: int) -> Launched:
            group = self._group(count - 1, needs)
            jobs = [FarJob(self._ray, self._actor(Host, needs, group)) for _ in range(count - 1)]
            here = self._address()
            hosts = [here, *(job.address() for job in jobs)]
            own, *others = environs(hosts, here, _free_port())
            for job, environ in zip(jobs, others, strict=True):
                job.begin(["run"], environ, None)
            return Launched({**own, **interface(here)}, jobs)

        with launching(count, started):
            yield

    def sandbox(self, limits: Limits, *, allow_unsafe: bool = False) -> ForkServers:
        """See Executor. Its servers are actors, one per free CPU of the cluster; the number of runs
        under way is theirs, and answers are read, compared and remembered here."""
        free = self._free()

        async def started(level: int) -> Server:
            actor = self._actor(Servers, Needs())
            server = FarServer(self._ray, actor)
            await server.begin(level)
            return server

        return ForkServers(limits, allow_unsafe=allow_unsafe, workers=free, start=started)

    def _free(self) -> int:
        """The cluster's free CPUs; waits for one, since an ended actor's is free a little later.
        Raises ConfigError if there is none."""
        end = time.monotonic() + ROOM_S
        while not (free := int(self._ray.available_resources().get("CPU", 0))):
            if time.monotonic() > end:
                raise ConfigError(
                    f"the Ray cluster had no free CPU for the sandbox within {ROOM_S:.0f} s: add a "
                    "machine, or see `ray status`"
                )
            time.sleep(0.2)
        return free

    def _address(self) -> str:
        """This machine's address, as the cluster reaches it."""
        if not self._head:
            return node_address(self._ray)
        there = urlsplit(self._head)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
            probe.connect((there.hostname, there.port))
            return str(probe.getsockname()[0])

    def _group(self, count: int, needs: Needs) -> Any:
        """Room for all processes of a launch at once, so that two launches never wait for each
        other's half; it is free again when this process ends. Raises ConfigError."""
        bundle = {"CPU": needs.cpus, "GPU": self._gpus(needs)}
        group = self._ray.util.placement_group([{k: v for k, v in bundle.items() if v}] * count)
        ready, _ = self._ray.wait([group.ready()], timeout=ROOM_S)
        if ready:
            return group
        self._ray.util.remove_placement_group(group)
        raise ConfigError(
            f"the Ray cluster had no room for {count} more processes of {needs.cpus} CPUs within "
            f"{ROOM_S:.0f} s: lower ranks, or see `ray status`"
        )

    def _actor(self, kind: type[Any], needs: Needs, group: Any = "default") -> Any:
        made = self._ray.remote(
            num_cpus=needs.cpus, num_gpus=self._gpus(needs), placement_group=group
        )
        return made(kind).remote()

    def _gpus(self, needs: Needs) -> int:
        if needs.gpus is not None:
            return needs.gpus
        return int(self._ray.cluster_resources().get("GPU", 0) >= 1)


# --- on the cluster's machines --------------------------------------------------------------------


class Host:
    """An actor that holds one process of ours."""

    _process: subprocess.Popen[bytes]

    def facts(self) -> tuple[str, str]:
        """This machine's address, and the version of this package."""
        import ray

        return node_address(ray), __version__

    def begin(
        self, args: Sequence[str], environ: Mapping[str, str], log: str | None, folder: str
    ) -> str:
        """Starts a command in `folder`; what is wrong there, or ''."""
        import ray

        if log is not None and not Path(log).parent.is_dir():
            return f"does not see {Path(log).parent}"
        tied = {PARENT: str(os.getpid())}  # a lost machine's processes end, and free their run
        with Path(log or os.devnull).open("ab") as said:
            self._process = subprocess.Popen(
                [*COMMAND, *args],
                cwd=folder if Path(folder).is_dir() else None,
                env={**os.environ, **interface(node_address(ray)), **tied, **environ},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        return ""

    def poll(self, seconds: float) -> int | None:
        """The exit code, at the latest after so many seconds; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll()

    def interrupt(self) -> None:
        """As Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def end(self, seconds: float) -> None:
        """Ends it: in order, or after so many seconds at once."""
        if self._process.poll() is None:
            self._process.terminate()
            self.poll(seconds)
            self._process.kill()
            self._process.wait()


class Servers:
    """An actor that holds one server of the sandbox."""

    _server: Server

    async def begin(self, level: int) -> tuple[dict[str, Any], str]:
        """Starts the server; its facts, or why this machine can't have one."""
        try:
            self._server = await start_server(level)
        except SandboxError as error:
            return {}, str(error)
        return self._server.facts, ""

    async def play(self, jobs: Sequence[dict[str, Any]], wall_s: float, room: int) -> Ended | None:
        """See Server; None: it is gone."""
        try:
            return await self._server.play(jobs, wall_s, room)
        except ConnectionError:
            return None

    async def close(self) -> None:
        """Ends the server."""
        await self._server.close()


# --- here -----------------------------------------------------------------------------------------


class FarJob:
    """A process of ours that an actor holds."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._code: int | None = None

    def _ask(self, work: Any, seconds: float | None = None) -> Any:
        """Raises Lost if the actor or its machine is gone."""
        try:
            return self._ray.get(work, timeout=seconds)
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise Lost(f"the Ray cluster lost a process ({reason(error)})") from None

    def address(self) -> str:
        """Of its machine. Raises ConfigError if the cluster has no room, or another version."""
        try:
            address, version = self._ray.get(self._actor.facts.remote(), timeout=ROOM_S)
        except self._ray.exceptions.GetTimeoutError:
            self._ray.kill(self._actor)
            raise ConfigError(
                f"the Ray cluster had no room for a process within {ROOM_S:.0f} s: see `ray status`"
            ) from None
        except self._ray.exceptions.RayError as error:
            raise ConfigError(
                f"the Ray cluster can't start our processes ({_short(error)}): install the same "
                "version of Python, Ray and this package on all its machines"
            ) from None
        if version != __version__:
            raise ConfigError(
                f"the machine {address} of the Ray cluster has version {version} of this package, "
                f"and this one {__version__}: install the same on all"
            )
        return str(address)

    def begin(self, args: Sequence[str], environ: Mapping[str, str], log: Path | None) -> None:
        """Starts `orchestry ARGS`. Raises ConfigError if its machine can't see the log's folder."""
        address = self.address()
        place = None if log is None else str(log)
        wrong = self._ask(self._actor.begin.remote([*args], dict(environ), place, str(Path.cwd())))
        if wrong:
            raise ConfigError(
                f"the machine {address} of the Ray cluster {wrong}: put the folder on a disk that "
                "all machines mount at the same path"
            )

    def poll(self) -> int | None:
        """See Job."""
        if self._code is None:
            self._code = self._ask(self._actor.poll.remote(0.0))
        return self._code

    def wait(self, seconds: float) -> None:
        """See Job."""
        self._code = self._ask(self._actor.poll.remote(seconds))

    def interrupt(self) -> None:
        """See Job."""
        self._ask(self._actor.interrupt.remote())

    def close(self) -> None:
        """See Job."""
        with suppress(Lost):
            self._ask(self._actor.end.remote(END_S), 2 * END_S)
        self._ray.kill(self._actor)


class FarServer:
    """A server of the sandbox that an actor holds."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.facts: dict[str, Any] = {}

    async def begin(self, level: int) -> None:
        """Starts it. Raises Unavailable if its machine can't have one at this level, and
        ConnectionError if that machine is lost."""
        try:
            self.facts, why = await self._actor.begin.remote(level)
        except self._ray.exceptions.ActorDiedError as error:
            raise ConnectionError(_short(error)) from None
        except self._ray.exceptions.RayError as error:
            raise SandboxError(f"the Ray cluster has no sandbox ({_short(error)})") from None
        if why:
            raise Unavailable(why)

    async def play(self, jobs: Sequence[dict[str, Any]], wall_s: float, room: int) -> Ended:
        """See Server."""
        try:
            found: Ended | None = await self._actor.play.remote([*jobs], wall_s, room)
        except self._ray.exceptions.RayError as error:
            raise ConnectionError(_short(error)) from None
        if found is None:
            raise ConnectionError("the server is gone")
        return found

    async def close(self) -> None:
        """See Server."""
        with suppress(self._ray.exceptions.RayError):
            await self._actor.close.remote()
        self._ray.kill(self._actor)


def _connected(address: str) -> Any:
    """The module ray, connected."""
    try:
        import ray
    except ImportError:
        raise ConfigError(f"Ray is not installed: `{install('ray')}`") from None
    if ray.is_initialized():
        return ray
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        _check_answers(address or os.environ.get("RAY_ADDRESS") or _left_by_start())
        ray.init(address or "auto", log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as error:
        there = f"at {address}" if address else "on this machine"
        raise ConfigError(
            f"there is no Ray cluster {there} ({reason(error)}): `ray start --head` begins one, "
            "and `ray start --address HOST:6379` on another machine joins it"
        ) from None
    return ray


def _left_by_start() -> str:
    """The address that `ray start` left for this machine's programs; '' if it did not."""
    try:
        return _STARTED.read_text().strip()
    except OSError:
        return ""


def _check_answers(address: str) -> None:
    """Raises OSError if nobody listens there: Ray would try for minutes."""
    there = urlsplit(address if "//" in address else f"//{address}")
    if there.hostname and there.port:
        socket.create_connection((there.hostname, there.port), ROOM_S / 12).close()


def node_address(ray: Any) -> str:
    """The address of the cluster's machine that this process runs on."""
    own = ray.get_runtime_context().get_node_id()
    (found,) = (n["NodeManagerAddress"] for n in ray.nodes() if n["NodeID"] == own)
    return str(found)


def interface(address: str) -> dict[str, str]:
    """Tells gloo which network to listen on: where it would look up the host's name, Debian answers
    with loopback. Empty if it is not found, and for a user's own choice."""
    import fcntl

    if sys.platform != "linux" or _GLOO in os.environ:
        return {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # one without an address
                asked = struct.pack("256s", name.encode())
                found = fcntl.ioctl(probe, _SIOCGIFADDR, asked)
                if socket.inet_ntoa(found[20:24]) == address:
                    return {_GLOO: name}
    return {}


def _short(error: Exception) -> str:
    """The first line of an error of Ray, which has a traceback below."""
    return f"{type(error).__name__}: {reason(error)}".splitlines()[0]


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
