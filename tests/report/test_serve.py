"""The page as a server gives it: to whom, what, and what is new."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from email.message import Message
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from orchestry.report import serve
from orchestry.report.serve import Watched, serving
from orchestry.store.run import Run, Store
from tests.report.made import copied
from tests.report.test_live import grown


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "EVERY_S", 0.05)


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: Message
    body: bytes


class Client:
    """Asks a server as a browser does."""

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        assert url.hostname == "127.0.0.1"
        self.port, self.token = url.port, url.query.removeprefix("token=")

    def __call__(
        self, path: str, token: str | None = None, method: str = "GET", **headers: str
    ) -> Answer:
        with self._asked(path, self.token if token is None else token, method, headers) as said:
            return Answer(said.status, said.headers, said.read())

    @contextmanager
    def _asked(
        self,
        path: str,
        token: str,
        method: str = "GET",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[HTTPResponse]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            whole = f"{path}{'&' if '?' in path else '?'}token={token}"
            connection.request(method, whole, headers=dict(headers))
            with closing(connection.getresponse()) as answer:
                yield answer

    def index(self) -> dict[str, Any]:
        """The data of the page."""
        found = re.search(r'id="index">(.*?)</script>', self("/").body.decode(), re.DOTALL)
        assert found
        data: dict[str, Any] = json.loads(found[1])
        return data

    @contextmanager
    def news(self, pages: int = 1) -> Iterator[Iterator[dict[str, Any]]]:
        """What the server says is new to a page of that count, one after the other."""
        with self._asked(f"/news?pages={pages}", self.token) as answer:
            assert answer.getheader("Content-Type") == "text/event-stream"
            lines = iter(answer.readline, b"")
            yield (json.loads(line[6:]) for line in lines if line.startswith(b"data: "))


@contextmanager
def served(*folders: Path) -> Iterator[Client]:
    """A server of these runs."""
    with serving(Watched(folders)) as address:
        yield Client(address)


def test_the_page_holds_rows_and_a_tree_is_asked_for(searched: Run) -> None:
    with served(searched.folder) as client:
        (run,) = client.index()["runs"]
        assert [row["episode"] for row in run["rows"]] == [0, 1, 2]
        assert run["now"]["state"] == "done"
        tree = json.loads(client("/tree?run=0&episode=1").body)
        assert len(tree["nodes"]) == len(searched.episodes[1].nodes)
        said = tree["nodes"][1]["turns"][0]["completion"]["text"]
        assert said == searched.episodes[1].nodes[1].turns[0].completion.text
        for wrong in ("run=1&episode=0", "run=0&episode=9", "run=-1&episode=0", "run=x"):
            assert client(f"/tree?{wrong}").status == 404


def test_only_who_has_the_token_is_answered(searched: Run) -> None:
    with served(searched.folder) as client:
        assert client("/").status == 200
        for path in ("/", "/news", "/tree?run=0&episode=0", "/nothing"):
            for token in ("", "x", client.token + "x", "%C3%BC"):
                answer = client(path, token=token)
                assert answer.status == 403
                assert b"words" not in answer.body
        assert client("/", Host="elsewhere.example:80").status == 403
        assert client("/", Host=f"localhost:{client.port}").status == 200
        assert client("/nothing").status == 404
        assert client("/", method="POST").status == 501


def test_the_page_may_ask_its_own_server_only(searched: Run) -> None:
    with served(searched.folder) as client:
        answer = client("/")
        policy = re.search(rb'Content-Security-Policy" content="([^"]*)"', answer.body)
        assert policy
        assert b"default-src 'none'" in policy[1]
        assert b"connect-src 'self'" in policy[1]
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"


def test_news_are_what_was_written_since(searched: Run, tmp_path: Path) -> None:
    place = tmp_path / "run"
    grown(searched.folder, place, 0.4)
    with served(place) as client:
        known = [row["episode"] for row in client.index()["runs"][0]["rows"]]
        with client.news() as news:
            # A page that is older than its connection is told all rows first.
            rows = list[int]()
            for share in (0.4, 0.7, 1.0):
                grown(searched.folder, place, share)
                wanted = len((place / "episodes.jsonl").read_bytes().splitlines()[:3])
                while len(rows) < wanted - (share < 1):
                    for told in (one for one in next(news)["runs"] if "entry" in one):
                        rows[told["from"] :] = [row["episode"] for row in told["rows"]]
            assert rows == [0, 1, 2]
        assert known == rows[: len(known)]


def test_a_new_evaluation_reloads_the_page(searched: Run, folder: Path) -> None:
    with served(folder) as client:
        assert len(client.index()["runs"]) == 1
        with client.news() as news:
            next(news)
            copied(searched.folder, folder / "evaluations" / "dev")
            assert [*news][-1] == {"reload": True}
        with client.news(pages=1) as news:  # of a page that is older than the evaluation
            assert next(news) == {"reload": True}
        assert [run["kind"] for run in client.index()["runs"]] == ["run", "evaluation"]


def test_who_watches_changes_nothing_and_keeps_nobody_out(folder: Path) -> None:
    def found() -> dict[Path, tuple[int, bytes]]:
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = found()
    with served(folder) as client, client.news() as news:
        next(news)
        client("/tree?run=0&episode=0")
        assert found() == before
        for _ in range(20):
            with Store(folder):  # raises LockedError if somebody holds it
                pass


def test_so_many_readers_and_no_more(searched: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MOST_READERS", 1)
    with served(searched.folder) as client, client.news() as news:
        next(news)
        assert client("/news?pages=1").status == 503


def test_a_run_that_is_gone_is_told_and_stays_on_the_page(searched: Run, folder: Path) -> None:
    copied(searched.folder, folder / "evaluations" / "dev")
    watched = Watched([folder])
    with serving(watched) as address, Client(address).news() as news:
        next(news)
        shutil.rmtree(folder)
        assert "holds no run" in next(news)["fault"] or "does not exist" in watched.fault
        assert Client(address)("/tree?run=0&episode=0").status == 404
        assert len(Client(address).index()["runs"][0]["rows"]) == 3


def test_a_damaged_library_is_named_and_the_page_still_opens(folder: Path) -> None:
    (folder / "behaviors").mkdir(exist_ok=True)
    (folder / "behaviors" / "library.yaml").write_text("{")
    with served(folder) as client:
        (run,) = client.index()["runs"]
        assert any("library.yaml can't be read" in said for said in run["missing"])


def test_a_run_that_is_just_beginning_is_starting(folder: Path) -> None:
    for name in ("journal.head", "episodes.jsonl", "summary.json"):
        (folder / name).unlink()
    (folder / "journal.jsonl").write_bytes(b"")
    with Store(folder), served(folder) as client:
        (run,) = client.index()["runs"]
        assert (run["now"]["state"], run["now"]["eta_s"]) == ("starting", None)


def test_a_recipes_next_stage_reloads_the_page(searched: Run, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe"
    copied(searched.folder, recipe / "stages" / "1-search")
    (recipe / "config.yaml").write_text("recipe: {steps: [search, magrpo]}\n")
    with served(recipe) as client, client.news() as news:
        next(news)
        copied(searched.folder, recipe / "stages" / "2-magrpo")
        assert [*news][-1] == {"reload": True}
        assert len(client.index()["runs"]) == 2
