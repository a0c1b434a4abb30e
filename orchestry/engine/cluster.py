"""A Ray cluster: our processes and sandbox servers on other machines (extra `ray`).

An actor holds one of them, so a lost machine shows as dead actors: a sandbox run is then played
elsewhere, a run of a sweep is resumed, and a launch ends. What is sent is code to be confined,
and commands of ours; API keys are never sent, each machine has its own environment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestry import __version__
from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, OrchestryError, SandboxError, reason
from orchestry.core.executor import ONE, Job, Lost, Needs, environs
from orchestry.core.machine import PARENT
from orchestry.core.probe import free_port
from orchestry.core.sandboxed import Limits
from orchestry.engine.executors import END_S, Launched, Running, launching
from orchestry.sandbox.elsewhere import Elsewhere
from orchestry.sandbox.pool import Server, start_server
from orchestry.sandbox.worker import Ended, Unavailable

_GLOO, _SIOCGIFADDR = "GLOO_SOCKET_IFNAME", 0x8915
_STARTED = Path("/tmp/ray/ray_current_cluster")  # noqa: S108 - as Ray itself does
_joined = ""
"""The address to which this process is connected; '' is that of this machine."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ROOM_S = 120.0
"""How long a process may wait for a free place in the cluster."""


class Cluster:
    """The executor `ray`."""

    def __init__(self, address: str) -> None:
        """Connects to Ray's head at `ray://HOST:PORT`, or to the cluster of this machine if it is
        ''. Raises ConfigError if Ray is not installed, or there is no cluster."""
        self._ray = _connected(address)
        named = os.environ.get("RAY_ADDRESS", "")
        self._head = address or (named if named.startswith("ray://") else "")

    def at_once(self, needs: Needs) -> int:
        """See Executor. Raises ConfigError if no machine is large enough."""
        gpus = self._gpus(needs)
        found = 0
        for node in self._ray.nodes():
            has = node["Resources"] if node["Alive"] else {}
            fits = has.get("CPU", 0) // needs.cpus
            found += int(min(fits, has.get("GPU", 0) // gpus) if gpus else fits)
        if not found:
            raise ConfigError(
                f"no machine of the Ray cluster has {needs.cpus} CPUs and {gpus} GPUs for a "
                "process: lower learn.threads or ppo.threads, or add a machine"
            )
        return found

    def start(self, args: Sequence[str], log: Path, needs: Needs) -> Job:
        """See Executor."""
        job = FarJob(self._ray, self._actor(Host, needs))
        try:
            job.begin(args, {}, log.resolve())
        except BaseException:
            job.close()
            raise
        return job

    @contextmanager
    def launch(self, count: int, needs: Needs) -> Iterator[None]:
        """See Executor."""

        def started(count: int) -> Launched:
            group, jobs = self._group(count - 1, needs), list[FarJob]()
            try:
                return self._launched(count, needs, group, jobs)
            except BaseException:
                for job in jobs:
                    job.close()
                self._ray.util.remove_placement_group(group)
                raise

        with launching(count, started):
            yield

    def _launched(self, count: int, needs: Needs, group: Any, jobs: list[FarJob]) -> Launched:
        """The other processes of a launch; `jobs` gets each of them."""
        jobs += [FarJob(self._ray, self._actor(Host, needs, group)) for _ in range(count - 1)]
        here = self._address()
        hosts = [here, *(job.address() for job in jobs)]
        # Ray shows each process its own GPU alone, as if it were alone on its machine.
        places = [f"{host} {rank}" for rank, host in enumerate(hosts)]
        own, *others = environs(places if self._gpus(needs) else hosts, here, free_port(""))
        for job, environ in zip(jobs, others, strict=True):
            job.begin(["run"], environ, None)
        return Launched({**own, **interface(here)}, jobs)

    def sandbox(self, limits: Limits, *, allow_unsafe: bool = False) -> Elsewhere:
        """See Executor. Its servers are actors, at most one per CPU of the cluster; the number of
        runs under way is theirs, and answers are read, compared and remembered here."""

        async def started(level: int) -> Server:
            server = FarServer(self._ray, self._actor(Servers, ONE))
            try:
                await server.begin(level)
            except BaseException:
                await server.close()
                raise
            return server

        most = self.at_once(ONE)
        return Elsewhere(limits, started, workers=most, room_s=ROOM_S, allow_unsafe=allow_unsafe)

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

    _job: Running

    def facts(self) -> tuple[str, str]:
        """This machine's address, and the version of this package."""
        import ray

        return node_address(ray), __version__

    def begin(
        self,
        args: Sequence[str],
        environ: Mapping[str, str],
        log: str | None,
        mark: str,
        folder: str,
    ) -> str:
        """Starts a command in `folder`; what is wrong there, or ''. With a `log`, the file `mark`
        shows whether the disk is that of the asking machine."""
        import ray

        if log is not None and not Path(mark).is_file():
            return f"does not see {Path(log).parent}"
        here = Path(folder) if Path(folder).is_dir() else None
        if log is not None and here is None:
            return f"does not see {folder}"
        tied = {PARENT: str(os.getpid())}  # a lost machine's processes end, and free their run
        own = {**interface(node_address(ray)), **tied, **environ}
        self._job = Running(args, Path(log or os.devnull), own, here)
        return ""

    def poll(self, seconds: float) -> int | None:
        """The exit code, at the latest after so many seconds; None while it runs."""
        self._job.wait(seconds)
        return self._job.poll()

    def interrupt(self) -> None:
        """As Ctrl-C."""
        self._job.interrupt()

    def end(self) -> None:
        """Ends it if it still runs."""
        self._job.close()


class Servers:
    """An actor that holds one server of the sandbox."""

    _server: Server

    async def begin(self, level: int) -> tuple[dict[str, Any], str]:
        """Starts the server; its facts, with `node` and `version`, or why there can be none."""
        import ray

        here = {"node": ray.get_runtime_context().get_node_id(), "version": __version__}
        try:
            self._server = await start_server(level)
        except SandboxError as error:
            return here, str(error)
        return {**self._server.facts, **here}, ""

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
        """Raises Lost if the actor or its machine is gone, ConfigError for a fault there."""
        try:
            return self._ray.get(work, timeout=seconds)
        except self._ray.exceptions.RayTaskError as error:
            raise ConfigError(
                f"a machine of the Ray cluster can't do this: {_short(error)}"
            ) from None
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise Lost(f"the Ray cluster lost a process ({_short(error)})") from None

    def address(self) -> str:
        """Of its machine. Raises ConfigError if the cluster has no room, or another version."""
        try:
            address, version = self._ray.get(self._actor.facts.remote(), timeout=ROOM_S)
        except self._ray.exceptions.GetTimeoutError:
            raise ConfigError(
                f"the Ray cluster had no room for a process within {ROOM_S:.0f} s: see `ray status`"
            ) from None
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise _failed(self._ray, error) from None
        _check_version(version)
        return str(address)

    def begin(self, args: Sequence[str], environ: Mapping[str, str], log: Path | None) -> None:
        """Starts `orchestry ARGS`. Raises ConfigError if its machine can't see the log's folder."""
        address, place = self.address(), None if log is None else str(log)
        with _marked(log) as mark:
            asked = ([*args], dict(environ), place, mark, str(Path.cwd()))
            wrong = self._ask(self._actor.begin.remote(*asked))
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
        with suppress(Lost, ConfigError):  # ConfigError: it has no process yet
            self._ask(self._actor.end.remote(), 2 * END_S)
        with suppress(self._ray.exceptions.RayError, ConnectionError):
            self._ray.kill(self._actor)


class FarServer:
    """A server of the sandbox that an actor holds."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.facts: dict[str, Any] = {}

    async def begin(self, level: int) -> None:
        """Starts it. Raises Unavailable if its machine can't have one at this level, ConfigError if
        it has other software, and Lost if it is lost."""
        try:
            self.facts, why = await self._actor.begin.remote(level)
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise _failed(self._ray, error) from None
        _check_version(self.facts.pop("version"))
        if why:
            raise Unavailable(why)

    async def play(self, jobs: Sequence[dict[str, Any]], wall_s: float, room: int) -> Ended:
        """See Server. Raises Lost if its machine is gone."""
        try:
            found: Ended | None = await self._actor.play.remote([*jobs], wall_s, room)
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise Lost(_short(error)) from None
        if found is None:
            raise ConnectionError("the server is gone")
        return found

    async def close(self) -> None:
        """See Server."""
        with suppress(self._ray.exceptions.RayError, ConnectionError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self._actor.close.remote()
        with suppress(self._ray.exceptions.RayError, ConnectionError):
            self._ray.kill(self._actor)


def _connected(address: str) -> Any:
    """The module ray, connected."""
    global _joined
    try:
        import ray
    except ImportError:
        raise ConfigError(f"Ray is not installed: `{install('ray')}`") from None
    if ray.is_initialized():
        if address and address != _joined:
            raise ConfigError(
                f"this process belongs to the Ray cluster {_joined or 'of this machine'}, and not "
                f"to {address}: start Python anew"
            )
        return ray
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        _check_answers(address or os.environ.get("RAY_ADDRESS") or _left_by_start())
        ray.init(address or "auto", log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as error:
        there = f"at {address}" if address else "on this machine"
        raise ConfigError(
            f"there is no Ray cluster {there} ({reason(error)}): `ray start --head` begins one, "
            "and `ray start --address HOST:6379` on another machine joins it; a run goes on "
            "without one by `resume --set executor=local`"
        ) from None
    _joined = address
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
    """What an error of Ray says, without colours: its cause, else its last line."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return f"{type(cause).__name__}: {reason(cause)}"
    lines = [line for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else type(error).__name__


def _failed(ray: Any, error: Exception) -> OrchestryError:
    """What it means that an actor could not begin: its machine is lost, or has other software."""
    known = ray.exceptions.RayActorError
    if isinstance(error, ConnectionError) or (
        isinstance(error, known) and not error.actor_init_failed
    ):
        return Lost(f"the Ray cluster lost a process ({_short(error)})")
    return _unlike(_short(error))


def _check_version(found: str) -> None:
    """Raises ConfigError."""
    if found != __version__:
        raise _unlike(f"one has version {found} of this package, not {__version__}")


def _unlike(found: str) -> ConfigError:
    return ConfigError(
        f"the machines of the Ray cluster are not alike ({found}): install the same version of "
        "Python, Ray and this package on all of them"
    )


@contextmanager
def _marked(log: Path | None) -> Iterator[str]:
    """A file beside the log that only this machine's disk has."""
    if log is None:
        yield ""
        return
    mark = log.with_name(f".seen-{secrets.token_hex(8)}")
    try:
        mark.touch()
    except OSError as error:
        raise ConfigError(f"{log.parent} can't be written ({reason(error)})") from None
    try:
        yield str(mark)
    finally:
        mark.unlink(missing_ok=True)
