"""Several vLLM servers that draw alike, as if they were one.

A server that stops answering is taken out, and the others get its requests: a request holds its
seed, so it does not matter which server answers it. Before the next draw it is tried again. A
refusal or an invalid answer takes none out: it is an error, since it shows a wrong setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from orchestry.core.errors import ProviderError
from orchestry.ext.vllm.server import Choice, Served, Unanswered, VllmServer


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and who gave it."""

    choice: Choice
    server: VllmServer


class Replicas:
    """Servers of one base. `complete` may be called from many threads at once."""

    def __init__(self, servers: Sequence[VllmServer], warn: Callable[[str], None]) -> None:
        """`warn` is told which servers are taken out and come back.

        At the start each has to answer, because an address that never did is probably wrong. Raises
        ProviderError otherwise, or if they serve different models; ConfigError if one accepts no
        adapters.
        """
        self._servers, self._warn = servers, warn
        self._living = list(servers)
        self._in_flight = dict.fromkeys(servers, 0)
        self._lock = Lock()
        found = []
        for server in servers:
            found.append(server.served())
            server.unload("orchestry-is-here")  # this shows whether it accepts adapters
        self._check_alike(found)

    def ready(self, folders: Mapping[str, Path], stale: Set[str]) -> Served:
        """The server with the smallest context, after all that answer have loaded the adapters in
        `folders` (by name) and unloaded the `stale` ones. Raises ProviderError if none answers."""
        with ThreadPoolExecutor(len(self._servers), "vllm") as pool:
            found = [*pool.map(lambda one: self._synchronised(one, folders, stale), self._servers)]
        each = [*zip(self._servers, found, strict=True)]
        here = [one for one in found if isinstance(one, Served)]
        lost = {server: one for server, one in each if isinstance(one, Unanswered)}
        if not here:
            raise next(iter(lost.values()))
        self._check_alike(here)
        for server in self._servers:
            if server not in lost and server not in self._living:
                self._living.append(server)
                self._warn(f"the vLLM server at {server.url} answers again and draws too")
        for server, error in lost.items():
            self._goes_on_without(server, error)
        return min(here, key=lambda one: float("inf") if one.context is None else one.context)

    def _synchronised(
        self, server: VllmServer, folders: Mapping[str, Path], stale: Set[str]
    ) -> Served | Unanswered:
        try:
            served = server.served(brief=server not in self._living)
            for name in sorted(stale & served.adapters):
                server.unload(name)
            for name in sorted(folders.keys() - served.adapters):
                server.load(name, folders[name])
        except Unanswered as error:
            return error
        return served

    def complete(self, body: Mapping[str, Any]) -> Answer:
        """The answer of the server with the fewest requests in flight; if it stops answering, that
        of another one. Raises ProviderError if none is left, or for a refusal."""
        while True:
            server = self._least_loaded()
            try:
                return Answer(server.complete(body), server)
            except Unanswered as error:
                if not self._goes_on_without(server, error):
                    raise
            finally:
                with self._lock:
                    self._in_flight[server] -= 1

    def _least_loaded(self) -> VllmServer:
        with self._lock:
            server = min(self._living, key=self._in_flight.__getitem__)
            self._in_flight[server] += 1
            return server

    def _goes_on_without(self, server: VllmServer, error: Unanswered) -> bool:
        """Takes the server out, unless it is the last one."""
        with self._lock:
            if self._living == [server]:
                return False
            if server in self._living:
                self._living.remove(server)
                self._warn(
                    f"the vLLM server at {server.url} stopped answering ({error.why}): the other "
                    f"{len(self._living)} draw without it, and it is tried again before each draw; "
                    f"to have it back, start it with `{server.command}`"
                )
            return True

    def _check_alike(self, found: Sequence[Served]) -> None:
        models = {(one.root, one.base): one.url for one in found}
        if len(models) > 1:
            shown = ", ".join(f"{base} ({root}) at {url}" for (root, base), url in models.items())
            raise ProviderError(
                f"the servers of learn.vllm_url serve different models, found {shown}: start each "
                f"with `{self._servers[0].command}`, then resume the run",
                transient=False,
                billed=False,
            )
