"""The report's page, served while runs grow: on loopback, read-only, to who has the token.

A reader gets the page with what is there, then, as server-sent events, what is new in each second.
An episode's tree is sent when somebody opens it.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from orchestry.core.errors import ConfigError, OrchestryError, StoreError
from orchestry.report.live import Followed
from orchestry.report.page import assemble
from orchestry.report.page.content import sources_of, tree_data
from orchestry.report.page.entry import PageRun, about, growing
from orchestry.report.page.steps import compared
from orchestry.report.page.texts import embedded
from orchestry.report.runs import arms, read_experiments
from orchestry.store.measurements import BASELINES, EVALUATIONS
from orchestry.store.recipes import recipe_in

EVERY_S = 1.0
"""Seconds between two looks at the runs."""
QUIET_S = 15.0
"""Seconds after which a reader without news is told that the server is there."""
POLL_S = 0.05
"""Seconds that the server takes to see that it is to end, at most."""
MOST_READERS = 32
Query = dict[str, str]
Seen = dict[int, tuple[int, int]]
"""By run: how often it was written anew, and how many of its rows a reader has."""
News = tuple[int, dict[str, Any]]


class Watched:
    """Runs that are read once for all readers of their page."""

    def __init__(self, places: Sequence[Path]) -> None:
        """`places`: runs, and recipes, whose stages may still begin."""
        self.places, self.token = places, secrets.token_urlsafe(16)
        self.changed = threading.Condition()
        self.version = 0
        """Counts the looks that found something new."""
        self.pages = 0
        """Counts the times that a run, an evaluation or a baseline was added."""
        self.fault = ""
        """Why the last look failed, and the page shows what was there before."""
        self.readers = 0
        self.over = False
        """Whether its readers are to be told nothing more."""
        self._read()

    def _read(self) -> None:
        folders = self._folders()
        self._experiments = read_experiments(folders, Followed)
        self._sources = list(sources_of(self._experiments))
        self._around, self.pages = self._measurements(), self.pages + 1
        self._grown = [self.version] * len(self._sources)
        self._news = [self._now(source) for source in self._sources]
        self._arms = compared(arms(self._experiments))

    def look(self) -> None:
        """Reads what is new and wakes the readers. A run that can't be read any more stays as it
        was."""
        with self.changed:
            before, fault = self.version, ""
            try:
                self._look(before)
            except (OrchestryError, OSError) as error:
                fault = str(error)
            if fault != self.fault:
                self.fault, self.version = fault, before + 1
            self.changed.notify_all()

    def _look(self, before: int) -> None:
        if self._measurements() != self._around:
            self._read()
            self.version = before + 1
        for place, source in enumerate(self._sources):
            grown, now = _run(source).refresh(), self._now(source)
            if grown or now != self._news[place]:
                self._news[place], self.version = now, before + 1
            if grown:
                self._grown[place] = self.version
        if any(_run(self._sources[n]).neural for n, at in enumerate(self._grown) if at > before):
            self._arms = compared(arms(self._experiments))

    def page(self) -> bytes:
        """The whole page."""
        with self.changed:
            entries = [
                {
                    **about(source),
                    **_growing(source),
                    "rows": _rows(source, 0),
                    "now": self._now(source),
                }
                for source in self._sources
            ]
            live = {"token": self.token, "pages": self.pages}
            index = {"cap": 0, "runs": entries, "arms": self._arms, "live": live}
            return assemble({"index": embedded(index), "lines": "[]"}, served=True)

    def end(self) -> None:
        """Lets all readers go."""
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def wait(self, pages: str, since: int, seen: Seen, patience_s: float) -> News | None:
        """The next version after that one, and what a reader that has `seen` does not know of it;
        `seen` is brought up to date. A page with other runs, of another count of `pages`, is to
        load anew. None: nothing new came."""
        with self.changed:
            self.changed.wait_for(lambda: self.version > since or self.over, patience_s)
            if str(self.pages) != pages:
                return self.version, {"reload": True}
            if self.version <= since:
                return None
            runs = [self._told(place, since, seen) for place in range(len(self._sources))]
            return self.version, {"runs": runs, "arms": self._arms, "fault": self.fault}

    def _told(self, place: int, since: int, seen: Seen) -> dict[str, Any]:
        source = self._sources[place]
        told: dict[str, Any] = {"run": place, "now": self._news[place]}
        if self._grown[place] > since:
            run, (replaced, count) = _run(source), seen.get(place, (-1, 0))
            first = count if replaced == run.replaced else 0
            told |= {"entry": _growing(source), "from": first, "rows": _rows(source, first)}
            seen[place] = (run.replaced, len(run.rows))
        return told

    def tree(self, place: int, episode: int) -> dict[str, Any] | None:
        """An episode; None if there is none."""
        with self.changed:
            if not 0 <= place < len(self._sources):
                return None
            found = _run(self._sources[place]).tree(episode)
            return tree_data(found) if found else None

    def _now(self, source: PageRun) -> dict[str, Any]:
        return asdict(_run(source).now)

    def _folders(self) -> list[Path]:
        """The runs themselves: of a recipe, the stages that have begun."""
        stages = {place: recipe_in(place) for place in self.places}
        return [
            folder
            for place, own in stages.items()
            for folder in ([one.folder for one in own if one.begun] or [place])
        ]

    def _measurements(self) -> list[str]:
        """The folders of runs, evaluations and baselines that can be read."""
        folders = self._folders()
        return sorted(map(str, folders)) + sorted(
            str(journal.parent)
            for folder in folders
            for name in (EVALUATIONS, BASELINES)
            for journal in folder.glob(f"{name}/*/journal.jsonl")
            if _is_there(journal)
        )


def _is_there(journal: Path) -> bool:
    """Whether it has begun to be written, after its config."""
    try:
        return bool(journal.stat().st_size) and (journal.parent / "config.yaml").is_file()
    except OSError:
        return False


def _run(source: PageRun) -> Followed:
    return cast(Followed, source.run)


def _growing(source: PageRun) -> dict[str, Any]:
    """`growing`; what can't be read is named, and left as the page has it."""
    try:
        return growing(source)
    except StoreError as error:
        return {"missing": [str(error)]}


def _rows(source: PageRun, first: int) -> list[dict[str, Any]]:
    """Its rows from that one on; each tree can be asked for."""
    return [{**row, "kept": True} for row in _run(source).rows[first:]]


class _Handler(BaseHTTPRequestHandler):
    """Answers GET of the page, its news and its trees."""

    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 60.0

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        answers = {"/": self._page, "/news": self._news, "/tree": self._tree}
        if not self._allowed(query.get("token", "")):
            self._answer(403, "text/plain", b"give the whole address, with its token\n")
        elif (answer := answers.get(url.path)) is None:
            self._answer(404, "text/plain", b"there is nothing here\n")
        else:
            answer(self.server.watched, query)

    def _allowed(self, token: str) -> bool:
        """The token, and a host that is this machine: a page elsewhere could have its own name lead
        here."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        right = secrets.compare_digest(token.encode(), self.server.watched.token.encode())
        return right and host in ("127.0.0.1", "localhost")

    def _page(self, watched: Watched, query: Query) -> None:
        self._answer(200, "text/html", watched.page())

    def _tree(self, watched: Watched, query: Query) -> None:
        numbers = [query.get(name, "") for name in ("run", "episode")]
        whole = all(text.isdecimal() and len(text) < 10 for text in numbers)
        if found := watched.tree(*map(int, numbers)) if whole else None:
            self._answer(200, "application/json", json.dumps(found).encode())
        else:
            self._answer(404, "text/plain", b"there is no such episode\n")

    def _news(self, watched: Watched, query: Query) -> None:
        """Until the reader leaves."""
        with watched.changed:
            full = watched.readers >= MOST_READERS
            watched.readers += not full
        if full:
            self._answer(503, "text/plain", b"too many pages are open\n")
            return
        try:
            self._head(200, "text/event-stream")
            self.end_headers()
            with suppress(OSError):
                for event in self._events(watched, query.get("pages", "")):
                    self.wfile.write(event)
        finally:
            with watched.changed:
                watched.readers -= 1
            self.close_connection = True

    def _events(self, watched: Watched, pages: str) -> Iterator[bytes]:
        """First all rows, since the page may be older than this connection. One with other runs is
        told to load anew."""
        since, seen = -1, Seen()
        while not watched.over:
            news = watched.wait(pages, since, seen, QUIET_S)
            if news is None:
                yield b": still here\n\n"
                continue
            since, said = news
            yield b"data: %b\n\n" % json.dumps(said).encode()
            if "reload" in said:
                return

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self._head(code, f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, code: int, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")

    def log_message(self, format: str, *args: Any) -> None:
        """The address, with its token, reaches no log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        self.watched = watched
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that leaves in mid-answer is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(watched: Watched, port: int = 0) -> Iterator[str]:
    """Serves the page within the block, whose value is its address, and looks at the runs while
    somebody reads it. Raises ConfigError for a port that can't be used."""
    try:
        server = _Server(watched, port)
    except OSError as error:
        raise ConfigError(f"port {port} can't be used ({error.strerror}): give another") from None
    over = threading.Event()
    threads = [
        threading.Thread(target=server.serve_forever, args=(POLL_S,), name="watch", daemon=True),
        threading.Thread(target=_look, args=(watched, over), name="look", daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/?token={watched.token}"
    finally:
        over.set()
        watched.end()
        server.shutdown()
        server.server_close()


def _look(watched: Watched, over: threading.Event) -> None:
    while not over.wait(EVERY_S):
        if watched.readers:
            watched.look()
