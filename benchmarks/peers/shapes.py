"""Which client reads what servers that are not OpenAI's answer: ours, and libraries for it.

    python -m benchmarks.peers.shapes [--calls N] [--only CLIENT] [--realtime] [--write]

A loopback server gives the answers of shapes_items, and what each client makes of them is judged.
The libraries run in `.envs`, made at the first run from requirements-NAME.txt. Then each client
makes calls of 1 kB, 32 at once. With --only, what was wrong is printed, and nothing is written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks import load, page
from benchmarks.guarantees.start import MB, disk_bytes
from benchmarks.peers.overhead import python_of
from benchmarks.peers.shapes_items import CASES, ITEMS, OTHERWISE, OVERFLOWS, reply_to
from benchmarks.peers.with_clients import AT_ONCE, CLIENTS
from benchmarks.server.loopback import ROOT
from orchestry.core.config import RetryConfig
from orchestry.core.errors import ProviderError
from orchestry.models.retry import Breaker, persist
from orchestry.report.text import table

COMMAND = "python -m benchmarks.peers.shapes --write"
GOAL_MS = 1.2
PAGE = "docs/benchmarks.md"
"""As CONTRIBUTING.md links to it."""
PACKAGES = {
    "litellm": "litellm",
    "any-llm": "any-llm-sdk",
    "pydantic-ai": "pydantic-ai-slim",
    "openai": "openai",
}
"""What is installed for a client."""
_OF_PIP = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "distutils-precedence")
_ABOUT = (
    "import json, sys; from importlib.metadata import metadata; m = metadata(sys.argv[1]);"
    "print(json.dumps({n: m.get_all(n) for n in ('Version', 'License-Expression', 'License',"
    " 'Classifier')}))"
)


@dataclass(frozen=True, slots=True)
class Package:
    """What a client's library is, from its metadata and from the package index."""

    name: str
    version: str
    licence: str
    mb: float
    releases: str


@dataclass(frozen=True, slots=True)
class Played:
    """What one client made of the cases."""

    found: Sequence[Sequence[Mapping[str, Any]]]
    cpu_ms: float
    others: float
    """The share of the machine that other processes took meanwhile."""

    @property
    def right(self) -> list[bool]:
        """By case."""
        return [case.right(found) for case, found in zip(CASES, self.found, strict=True)]

    def cell(self, item: str, not_offered: Sequence[str]) -> str:
        """The verdict on an item."""
        mine = [ok for case, ok in zip(CASES, self.right, strict=True) if case.item == item]
        if all(mine):
            return "right"
        if any(mine):
            return f"{sum(mine)} of {len(mine)}"
        return "not offered" if item in not_offered else "wrong"


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """The server's address; each case has its own below it."""

    async def handle(request: web.Request) -> web.Response:
        query, headers = dict(request.query), dict(request.headers)
        seen = {"body": await request.json(), "headers": headers, "query": query}
        status, answer = reply_to(int(request.match_info["number"]), seen)
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_post("/{number}/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def played(client: str, url: str, calls: int) -> Played:
    """One client's run in a process of its own; raises RuntimeError with its last words."""
    before = load.read()
    process = await asyncio.create_subprocess_exec(
        *(python_of(client), "-m", "benchmarks.peers.with_clients", client, url, str(calls)),
        cwd=ROOT,
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{client} failed: {err.decode().strip()[-2000:]}")
    return Played(**json.loads(out.splitlines()[-1]), others=load.others(before, load.read()))


async def play(clients: Sequence[str], calls: int, patience_s: float) -> dict[str, Played]:
    """Every client in turn, when the machine is quiet."""
    found = {}
    async with serving() as url:
        for client in clients:
            python_of(client)  # made before the clock starts
            load.wait(patience_s)
            found[client] = await played(client, url, calls)
            print(f"{client}: {found[client].cpu_ms:.2f} ms", file=sys.stderr)
    return found


# --- the libraries --------------------------------------------------------------------------------


def package(client: str) -> Package:
    """The facts about a client's library."""
    python = python_of(client)
    command = [python, "-c", _ABOUT, PACKAGES[client]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    about = json.loads(done.stdout)
    site = next(Path(python).parents[1].glob("lib/python*/site-packages"))
    added = sum(disk_bytes(one) for one in site.iterdir() if not one.name.startswith(_OF_PIP))
    name = PACKAGES[client]
    return Package(name, about["Version"][0], _licence(about), added / MB, releases(name))


def _licence(about: Mapping[str, Sequence[str] | None]) -> str:
    """As the package's metadata has it."""
    said = about["License-Expression"] or about["License"]
    classes = [one for one in about["Classifier"] or () if one.startswith("License ::")]
    return (said or [classes[0].rpartition(":: ")[2]])[0].partition("\n")[0]


def releases(name: str) -> str:
    """How many releases the index that pip asks has of a package, and the first and last day."""
    asked = urllib.request.Request(
        f"{_index().rstrip('/')}/{name}/",
        headers={"Accept": "application/vnd.pypi.simple.v1+json"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            found = json.load(answer)
        days = sorted(file["upload-time"][:10] for file in found["files"])
        return f"{len(found['versions'])}, {days[0]} to {days[-1]}"
    except (OSError, ValueError, KeyError, IndexError) as error:
        print(f"releases of {name}: not known here ({error})", file=sys.stderr)
        return "not known here"


def _index() -> str:
    from pip._internal.models.index import PyPI

    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return os.environ.get("PIP_INDEX_URL") or done.stdout.strip() or PyPI.simple_url


async def loops(calls: int = 2000) -> dict[str, float]:
    """CPU milliseconds that a loop of retries adds to a call that succeeds: ours and tenacity's,
    each with what an attempt, a wait and the end need."""
    from tenacity import AsyncRetrying, retry_if_exception

    config, rng = RetryConfig(), random.Random(0)
    server = Breaker("it", config, rng, print, time.monotonic, asyncio.sleep)

    async def attempt() -> None: ...

    async def ours() -> None:
        await persist(attempt, config, server, rng, asyncio.sleep)

    async def theirs() -> None:
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, ProviderError)),
            stop=lambda state: state.attempt_number >= config.attempts,
            wait=lambda state: rng.uniform(0.0, config.base_s),
            sleep=asyncio.sleep,
        )
        await retrying(attempt)

    found = {}
    for name, loop in (("ours", ours), ("tenacity", theirs)):
        began = time.process_time()
        for _ in range(calls):
            await loop()
        found[name] = 1000 * (time.process_time() - began) / calls
    return found


# --- the page -------------------------------------------------------------------------------------


def section(
    found: Mapping[str, Played],
    packages: Mapping[str, Package],
    calls: int,
    retries: Mapping[str, float],
) -> str:
    """The section's text."""
    verdicts = [
        [item, *(one.cell(item, CLIENTS[name].not_offered) for name, one in found.items())]
        for item in ITEMS
    ]
    facts = [
        [name, *_score(one), f"{one.cpu_ms:.2f}", *_about(packages.get(name))]
        for name, one in found.items()
    ]
    head = [
        *("client", "items right", "cases right", "ms CPU per call"),
        *("package", "MB", "licence", "releases"),
    ]
    return (
        f"{len(CASES)} cases of what servers that are not OpenAI's answer or want. Each library is "
        "asked as its documentation says for a server of OpenAI's form. `k of n`: right in so many "
        "of an item's cases; `not offered`: the library leaves it to its caller. Retries are off. "
        "`orchestry` is our provider `openai` with the reader of structured answers; it stands on "
        "OpenAI's SDK, and `openai` is that SDK alone. Ours was mended by such cases, so that it "
        "is right in all of them says nothing of cases that nobody has thought of. Overflow: "
        f"{len(OVERFLOWS)} servers' words, and {len(OTHERWISE)} that sound alike and are not.\n\n"
        f"{table(['what comes', *found], verdicts, figures=False)}\n\n"
        f"CPU time of the client's process, with {AT_ONCE} calls of 1 kB at once: the median of "
        f"{calls // AT_ONCE} rounds, after a warm-up; other processes took up to "
        f"{_busy(found):.0%} of the machine meanwhile. MB: what installing it with aiohttp, the "
        "faster of OpenAI's two HTTP libraries, adds to an empty environment. Licence by "
        "the package's metadata; releases by the index that pip asks.\n\n"
        f"{table(head, facts, figures=False)}\n\n{verdict(found)}\n\n"
        f"The loop of retries around a call that succeeds: {retries['ours']:.4f} ms of CPU by "
        f"ours, {retries['tenacity']:.4f} ms by tenacity's, which builds a state for each call."
    )


def _busy(found: Mapping[str, Played]) -> float:
    return max(one.others for one in found.values())


def _score(one: Played) -> tuple[str, str]:
    whole = sum(one.cell(item, ()) == "right" for item in ITEMS)
    return f"{whole} of {len(ITEMS)}", f"{sum(one.right)} of {len(CASES)}"


def _about(one: Package | None) -> tuple[str, str, str, str]:
    """A library's facts; ours needs no other than OpenAI's SDK."""
    if one is None:
        return "on `openai`", "as `openai`", "", ""
    return f"{one.name} {one.version}", f"{one.mb:.0f}", one.licence, one.releases


def verdict(found: Mapping[str, Played]) -> str:
    """Whether a library is right in more cases than ours, at the price that is allowed."""
    ours = sum(found["orchestry"].right)
    better = [n for n, one in found.items() if sum(one.right) > ours and one.cpu_ms <= GOAL_MS]
    rule = f"A library is taken if it is right in more cases and a call takes at most {GOAL_MS} ms:"
    return f"{rule} {', '.join(better) or 'none is'}."


def reason(
    found: Mapping[str, Played], packages: Mapping[str, Package], retries: Mapping[str, float]
) -> str:
    """The same for CONTRIBUTING.md, in a few sentences."""
    theirs = [
        f"{packages[name].name} {packages[name].version} in {sum(one.right)} "
        f"({one.cpu_ms:.2f} ms, {packages[name].mb:.0f} MB)"
        for name, one in found.items()
        if name in packages
    ]
    ours, link = found["orchestry"], page.link("shapes", "table").replace("(", f"({PAGE}")
    return (
        "Answers of servers that are not OpenAI's are read by our own code, on OpenAI's SDK. Of "
        f"{len(CASES)} cases it is right in {sum(ours.right)} ({ours.cpu_ms:.2f} ms of CPU per "
        f"call, while other processes took up to {_busy(found):.0%} of the machine), "
        f"{', '.join(theirs)}. {verdict(found)} ({link}) "
        "Retries of paid calls are ours too: with tenacity the same tests pass, but its loop takes "
        f"{retries['tenacity']:.2f} ms per call, ours {retries['ours']:.4f} ms, and what counts as "
        "an attempt, how long to wait and when to end would stay callbacks of ours."
    )


def put(text: str, place: Path = ROOT / "CONTRIBUTING.md") -> None:
    """Puts the text between the marks of that file."""
    before, begin, rest = place.read_text("utf-8").partition("<!-- shapes -->\n")
    _, end, after = rest.partition("<!-- end of shapes -->")
    lines = textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)
    place.write_text(f"{before}{begin}{lines}\n{end}{after}", "utf-8")


def _wrong(one: Played) -> None:
    """Prints what was made of the cases that are wrong."""
    for number, (case, found, right) in enumerate(zip(CASES, one.found, one.right, strict=True)):
        if not right:
            print(f"{number} {case.item}: {json.dumps(found)[:300]}")


def main() -> None:
    """Plays and measures; writes the section where nothing was left out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=960)
    parser.add_argument("--only", choices=CLIENTS, action="append")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds to wait for quiet")
    parser.add_argument("--realtime", action="store_true", help="before other processes (as root)")
    parser.add_argument("--write", action="store_true", help="write the page, and CONTRIBUTING.md")
    args = parser.parse_args()
    if args.realtime:  # inherited by all clients
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    found = asyncio.run(play(args.only or [*CLIENTS], args.calls, args.patience))
    if args.only:
        for one in found.values():
            _wrong(one)
        return
    packages = {name: package(name) for name in PACKAGES}
    retries = asyncio.run(loops())
    text = section(found, packages, args.calls, retries)
    print(text)
    if args.write:
        command = COMMAND.replace("--write", "--realtime --write" if args.realtime else "--write")
        page.write("shapes", command, text)
        put(reason(found, packages, retries))


if __name__ == "__main__":
    main()
