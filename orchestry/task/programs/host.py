"""Runs the user's programs, each in a thread of its own, and answers their calls over HTTP.

The server listens on this machine alone. Every rollout has its own address and its own key.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from inspect import isawaitable
from itertools import product
from pathlib import Path
from threading import Thread
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, OrchestryError, RewardFault, TaskError, reason
from orchestry.core.types import (
    Completion,
    Message,
    Policy,
    Problem,
    Request,
    Score,
    Turn,
    utf8,
)
from orchestry.task.programs import wire
from orchestry.task.programs.agent_task import AgentTask, Ask, Conversation, Team
from orchestry.task.programs.beside import (
    COUNT,
    EMBEDDINGS,
    MODELS,
    counted,
    embedded,
    embedding,
    model,
    models,
)
from orchestry.task.programs.responses import RESPONSES
from orchestry.task.programs.roles import HEADER, called, named_by, role_of

if TYPE_CHECKING:
    from aiohttp import web

    Work = Callable[[web.Request, "Program"], Awaitable[web.StreamResponse]]
    """Answers a call of a rollout's program."""

LOOPBACK = "127.0.0.1"
_DEPLOYED = "/deployments/{deployment}"
"""How Azure's clients write a model's name."""
_NO_PROXY = ("NO_PROXY", "no_proxy")
PROGRAM = "program"
"""Who asks for what is no agent's answer, in the bill."""
KEY_BYTES = 16
NO_EMBEDDINGS = "weights of this machine have no embeddings: ask another server for them"
TOO_LONG = "context_length_exceeded: the prompt leaves no room for an answer, so shorten it"
KINDS = (*wire.KINDS, RESPONSES)
MESSAGES = next(kind for kind in KINDS if kind.path == "/messages")
MOST_BYTES = 16 << 20
"""Of a call's body."""
DEEPEST = 100
"""Objects and lists in each other, in a schema."""


class Refused(Exception):
    """A call that gets no answer, and the HTTP status that says so."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class _Waiting:
    ask: Ask
    answer: asyncio.Future[Completion]


@dataclass(slots=True)
class Program:
    """One rollout: the thread that plays it, and what it waits for. Lives in the run's event loop;
    only `_run` is in the thread."""

    task: AgentTask
    problem: Problem
    team: Team
    _loop: asyncio.AbstractEventLoop
    structured: bool = True
    """Whether answers may be asked for by a schema."""
    policy: Policy | None = None
    """What embeds; None where weights of this machine answer."""
    _waiting: list[_Waiting] = field(default_factory=list)
    _drawn: dict[str, _Waiting] = field(default_factory=dict)
    """By role, the calls for which moves are drawn."""
    _asked: Counter[str] = field(default_factory=Counter)
    """How many moves were drawn for equal calls, by their digest."""
    _calls: int = 0
    _end: Score | TaskError | None = None
    _closed: bool = False
    _broken: OrchestryError | None = None
    """What ends the run, such as its cap, met by a call beside the moves."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, state: Conversation) -> Conversation:
        """The state in which the program waits for its first answers, or has ended."""
        Thread(target=self._run, daemon=True, name=f"{self.task.name} {self.problem.id}").start()
        return await self._settled(replace(state, program=self))

    async def go_on(self, state: Conversation, turns: Sequence[Turn]) -> Conversation:
        """The state after the program has got these answers."""
        for turn in turns:
            answer = self._drawn.pop(turn.agent).answer
            if answer.done():  # its client has given up meanwhile
                continue
            if why := TOO_LONG if turn.completion.void == "too_long" else turn.completion.failed:
                answer.set_exception(Refused(400, why))
            else:
                answer.set_result(turn.completion)
        return await self._settled(state)

    async def ask(self, ask: Ask) -> Completion:
        """Waits until the run has answered. Raises Refused."""
        self._check_open()
        if self._calls >= self.task.max_turns:
            raise Refused(
                400,
                f"this rollout has made its {self.task.max_turns} calls: make fewer, or raise "
                f"max_turns of task {self.task.name}",
            )
        if ask.schema is not None and not self.structured:
            raise Refused(400, "these weights don't answer by a JSON schema: leave it out")
        self._calls += 1
        waiting = _Waiting(ask, self._loop.create_future())
        self._waiting.append(waiting)
        self._news.set()
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            if waiting in self._waiting:  # no move was drawn for it yet
                self._waiting.remove(waiting)
                self._calls -= 1
            raise

    async def embed(self, told: str, model: str) -> Completion:
        """The embeddings of what `embedding` read: no move, but paid as one. Raises Refused."""
        self._check_open()
        if self.policy is None:
            raise Refused(400, NO_EMBEDDINGS)
        self._news.set()  # it does something
        shown = (Message(role="user", content=told),)
        request = Request(
            agent=PROGRAM,
            purpose="embed",
            model=model,
            messages=shown,
            max_tokens=1,
            programmed=True,
        )
        try:
            ((answer,),) = await self.policy.sample([request], 1)
        except OrchestryError as error:
            self._broken = error
            self._news.set()
            raise Refused(410, reason(error)) from None
        if why := TOO_LONG if answer.void == "too_long" else answer.failed:
            raise Refused(400, why)
        return answer

    def _check_open(self) -> None:
        if self._closed or self._end is not None or self._broken is not None:
            raise Refused(410, "this rollout is over: make no more calls in it")

    def close(self) -> None:
        """Lets go of the program: what it still asks is refused."""
        self._closed = True
        self.team.close()
        for one in (*self._waiting, *self._drawn.values()):
            if not one.answer.done():
                one.answer.set_exception(Refused(410, "this rollout was given up"))
        self._waiting.clear()
        self._drawn.clear()

    async def _settled(self, state: Conversation) -> Conversation:
        """Waits for a call or for the end."""
        while not self._waiting and self._end is None and self._broken is None:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), self.task.timeout_s)
            except TimeoutError:
                self._end = TaskError(
                    f"task {self.task.name}: play made no call and did not end for "
                    f"{self.task.timeout_s:g} s on problem {self.problem.id}: raise timeout_s, or "
                    "see where it hangs"
                )
        if self._broken is not None:
            self.close()
            raise self._broken
        if self._end is None:
            for one in [*self._waiting]:  # a role's other calls wait for its first one
                if one.ask.role not in self._drawn:
                    unset = None if one.ask.must_call else {"must_call"}  # as before it existed
                    told = to_json(one.ask, exclude=unset)
                    asked = blake2b(told, digest_size=16).hexdigest()
                    one.ask = replace(one.ask, place=f"{asked} {self._asked[asked]}")
                    self._asked[asked] += 1
                    self._drawn[one.ask.role] = one
                    self._waiting.remove(one)
            return replace(state, asks=tuple(one.ask for one in self._drawn.values()))
        self.close()  # calls that nobody waits for any more
        if isinstance(self._end, Score) and not self._calls:
            self._end = TaskError(
                f"task {self.task.name}: play ended without asking an agent on problem "
                f"{self.problem.id}: give its clients base_url=team.base_url(ROLE) and "
                "api_key=team.key (a command finds both in the environment)"
            )
        if isinstance(self._end, Score):
            return replace(state, asks=(), score=self._end)
        return replace(state, asks=(), fault=self._end)

    def _run(self) -> None:
        try:
            end = self._played()
        except BaseException as error:
            end = self._fault(error)
        with suppress(RuntimeError):  # the run has ended meanwhile, and its loop is closed
            self._loop.call_soon_threadsafe(self._ended, end)

    def _played(self) -> Score | TaskError:
        found: Any = self.task.play(self.problem, self.team)
        if isawaitable(found):
            found = asyncio.run(_awaited(found))
        if isinstance(found, Score):
            return found
        return RewardFault(
            f"task {self.task.name}: play gave a {type(found).__name__} on problem "
            f"{self.problem.id}: return a Score, as self.score(...) makes one"
        )

    def _fault(self, error: BaseException) -> TaskError:
        if isinstance(error, TaskError):
            return error
        frames = extract_tb(error.__traceback__)
        home = Path(sys.modules[type(self.task).__module__].__file__ or "").parent
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(home)]
        last = (own or frames)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return TaskError(
            f"task {self.task.name}: play raised {type(error).__name__}: {reason(error)} on "
            f"problem {self.problem.id} ({place}): catch it in the program, or mend that line"
        )

    def _ended(self, end: Score | TaskError) -> None:
        self._end = self._end or end
        self._news.set()


async def _unknown(request: web.Request) -> web.Response:
    """Any other path."""
    from aiohttp import web

    known = ", ".join((*(kind.path for kind in KINDS), EMBEDDINGS, COUNT, MODELS))
    text = f"{request.path} is not answered here, only {known}"
    return web.json_response(wire.chat_error(text), status=404)


async def _awaited(found: Any) -> Any:
    return await found


@contextmanager
def _direct() -> Iterator[None]:
    """In this context clients in this process ask no proxy of the user's for this machine."""
    before = {name: os.environ.get(name) for name in _NO_PROXY}
    for name in _NO_PROXY:
        kept = before[name] or next(filter(None, before.values()), None)
        if kept != "*":  # no proxy at all, which clients read only where it stands alone
            os.environ[name] = f"{kept},{LOOPBACK}" if kept else LOOPBACK
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class Host:
    """The server of one process of a run, and the rollouts that ask it."""

    def __init__(self, task: AgentTask, *, structured: bool = True) -> None:
        self.task, self._structured = task, structured
        self._programs: dict[str, Program] = {}
        self._numbers = 0
        self._address = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Host]:
        """Listens until the end of the block. Raises ConfigError if aiohttp is missing."""
        try:
            from aiohttp import web
        except ImportError as error:
            raise ConfigError(
                f"task {self.task.name} plays a program of its own, whose calls are answered by "
                f"aiohttp, which can't be imported here ({reason(error)}): {install('agents')}"
            ) from None
        app = web.Application(client_max_size=MOST_BYTES)
        starts = ("", "/v1", "/v1/v1")  # clients differ in what they add, most of all Azure's
        for start, more in product(starts, ("", "/openai/v1", _DEPLOYED, f"/openai{_DEPLOYED}")):
            head = f"/rollout/{{id}}/{{role}}{start}{more}"
            for kind in KINDS:
                app.router.add_post(
                    f"{head}{kind.path}", self._handler(kind.error, self._asked(kind))
                )
            for path, work in ((COUNT, self._counted), (EMBEDDINGS, self._embedded)):
                app.router.add_post(f"{head}{path}", self._handler(wire.chat_error, work))
            for path in (MODELS, f"{MODELS}/{{name:.+}}"):
                app.router.add_get(f"{head}{path}", self._handler(wire.chat_error, self._models))
        app.router.add_route("*", "/{path:.*}", _unknown)
        # a client that has given up is not answered, and frees its place
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, LOOPBACK, 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            self._address = f"http://{host}:{port}/rollout"
            with _direct():
                yield self
        finally:
            for program in self._programs.values():
                program.close()
            await runner.cleanup()

    @contextmanager
    def rollouts(self, policy: Policy | None = None) -> Iterator[Rollouts]:
        """Starts programs, and lets go of them at the end of the block; `policy`: what embeds."""
        mine = Rollouts(self, policy)
        try:
            yield mine
        finally:
            for name in mine.names:
                self._programs.pop(name).close()

    def program(
        self, problem: Problem, seed: int, policy: Policy | None = None
    ) -> tuple[str, Program]:
        """A new rollout, by its name."""
        self._numbers += 1
        name = str(self._numbers)
        roles = tuple(spec.role for spec in self.task.agents)
        key = secrets.token_urlsafe(KEY_BYTES)  # other users of this machine must not guess it
        team = Team(roles, seed, key, f"{self._address}/{name}")
        loop = asyncio.get_running_loop()
        program = Program(self.task, problem, team, loop, self._structured, policy)
        self._programs[name] = program
        return name, program

    def _asked(self, kind: wire.Kind) -> Work:
        """Answers a call of a model, as a move."""

        async def work(request: web.Request, program: Program) -> web.StreamResponse:
            from aiohttp import web

            body, ask = await self._read(kind, request)
            answer = await program.ask(ask)
            if not body.get("stream"):
                return web.json_response(kind.answer(answer, body))
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for chunk in kind.stream(answer, body):
                await response.write(chunk.encode())
            return response

        return work

    async def _read(self, kind: wire.Kind, request: web.Request) -> tuple[wire.Body, Ask]:
        """A call, and the agent that it asks."""
        body, named = await _body(request), _named(request)
        ask = _shallow(kind.read(named, body))
        role = role_of(self.task, named, str(body.get("model") or ""), ask)
        return body, replace(ask, role=role)

    async def _counted(self, request: web.Request, program: Program) -> web.StreamResponse:
        from aiohttp import web

        _, ask = await self._read(MESSAGES, request)
        return web.json_response(counted(ask))

    async def _embedded(self, request: web.Request, program: Program) -> web.StreamResponse:
        from aiohttp import web

        body = await _body(request)
        answer = await program.embed(embedding(body), body["model"])
        return web.json_response(embedded(answer, body))

    async def _models(self, request: web.Request, program: Program) -> web.StreamResponse:
        """The agents by the names that the program may ask them by; or one of these."""
        from aiohttp import web

        roles, asked = program.team.roles, request.match_info.get("name")
        names = [*roles, *self.task.models.values()]
        if asked is None:
            return web.json_response(models([*dict.fromkeys(names)]))
        if not _named(request) and len(roles) > 1 and not called(self.task, asked):
            raise Refused(404, f"there is no model {wire.short(asked)}, only {', '.join(names)}")
        return web.json_response(model(asked))

    def _handler(self, form: Callable[[str], dict[str, Any]], work: Work) -> Any:
        """A route: what can't be answered costs the program one clear line, in `form`."""

        async def handle(request: web.Request) -> web.StreamResponse:
            from aiohttp import web

            try:
                return await work(request, self._program(request))
            except wire.Unreadable as error:
                status, text = 400, str(error)
            except TaskError as error:
                status, text = 404, str(error)
            except Refused as error:
                status, text = error.status, str(error)
            return web.json_response(form(text), status=status)

        return handle

    def _program(self, request: web.Request) -> Program:
        """The rollout that a call is for. Raises Refused."""
        program = self._programs.get(request.match_info["id"])
        if program is None:
            raise Refused(410, "there is no such rollout, or it is over: make no more calls in it")
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given = request.headers.get("x-api-key") or request.headers.get("api-key") or bearer
        if not secrets.compare_digest(given.encode(errors="replace"), program.team.key.encode()):
            raise Refused(401, "wrong key: give the client api_key=team.key")
        return program


@dataclass(slots=True)
class Rollouts:
    """The rollouts of one episode."""

    host: Host
    policy: Policy | None = None
    names: list[str] = field(default_factory=list)

    async def start(self, state: Conversation, seed: int) -> Conversation:
        """A program's first state."""
        name, program = self.host.program(state.problem, seed, self.policy)
        self.names.append(name)
        return await program.start(state)


def _named(request: web.Request) -> str:
    """The agent that is named outright, else ''."""
    return named_by(request.match_info["role"], request.headers.get(HEADER, ""))


async def _body(request: web.Request) -> Mapping[str, Any]:
    """As an object whose texts are valid Unicode."""
    try:
        told = json.loads(await request.read())
        found = json.loads(utf8(json.dumps(told, ensure_ascii=False, allow_nan=False)))
        to_json(found)  # refuses what is nested too deep to be told, wherever it stands
    except (ValueError, RecursionError) as error:
        raise wire.Unreadable(f"the body can't be read as JSON ({reason(error)})") from None
    if not isinstance(found, dict):
        raise wire.Unreadable("the body is not a JSON object")
    named = request.match_info.get("deployment")
    return {**found, "model": named} if named else found


def _shallow(ask: Ask) -> Ask:
    """The same, if its schemas can be read back from a run's files. Raises Unreadable."""
    for schema in (ask.schema, *(tool.parameters for tool in ask.tools)):
        if _depth(schema) > DEEPEST:
            raise wire.Unreadable(f"a schema is nested deeper than {DEEPEST}: flatten it")
    return ask


def _depth(part: Any) -> int:
    """How many objects and lists stand in each other."""
    inner = part.values() if isinstance(part, Mapping) else part
    return 1 + max(map(_depth, inner), default=0) if isinstance(part, Mapping | list) else 0
