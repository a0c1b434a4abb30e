"""Tools that agents may call: typed Python functions, and how models see them.

A tool's arguments come from a model and its result goes to one, so nothing that goes wrong in a
call is an error of the run: the result says what was wrong, and the model can try again.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Thread
from typing import TYPE_CHECKING, Any, NotRequired, get_type_hints

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import TypedDict

from orchestry.core.errors import ConfigError, SandboxError, reason
from orchestry.core.extras import others, packed, unpacked
from orchestry.core.values import Frozen, utf8

if TYPE_CHECKING:
    from orchestry.core.types import Problem, Sandbox

TOO_MANY = "error: no calls were left in this turn"
"""The result of a call that was not made."""
CALL_CHARS = 300
"""Of a call's arguments and of its result, for whoever judges a move."""
_CALLED = "[called"
RESULT_CHARS = 20_000
"""Longer results are cut, so that one call can't fill a model's context."""
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
"""What both vendors take."""
ANY = "*"
"""In place of a tool's name: whichever the model chooses."""


class ToolSpec(Frozen):
    """A tool as models see it."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any]
    """JSON schema of its arguments, an object."""

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def function(self) -> dict[str, Any]:
        """In OpenAI's form, which chat templates take too."""
        return {"type": "function", "function": self.model_dump()}


class ToolCall(Frozen):
    """A call that a model asks for."""

    id: str
    name: str
    arguments: str
    """JSON text as the model wrote it, so it may be anything."""
    extra: str = Field("", exclude_if=lambda found: not found)
    """Other fields of its server, such as a signature, which it wants back; see core.extras."""

    @classmethod
    def read(cls, found: object, place: int) -> ToolCall:
        """From OpenAI's form, whatever stands in it; some servers give calls no id."""
        asked = found if isinstance(found, dict) else {}
        function = asked.get("function")
        function = function if isinstance(function, dict) else {}
        id, name = (
            one if isinstance(one, str) else "" for one in (asked.get("id"), function.get("name"))
        )
        given = function.get("arguments")
        if given is not None and not isinstance(given, str):  # some servers write the object itself
            given = json.dumps(given, ensure_ascii=False)
        extra = others(asked, "id", "type", "index", "function")
        extra["function"] = others(function, "name", "arguments")
        return cls(id=id or f"call_{place}", name=name, arguments=given or "", extra=packed(extra))

    @property
    def function(self) -> dict[str, Any]:
        """In OpenAI's form."""
        extra = unpacked(self.extra)
        within = extra.pop("function", {})
        named = {"name": self.name, "arguments": self.arguments, **within}
        return {"id": self.id, "type": "function", "function": named, **extra}

    @property
    def given(self) -> dict[str, Any]:
        """The arguments as an object, which a model must be shown; {} where it wrote no object."""
        return _object(self.arguments) or {}

    @property
    def clean(self) -> ToolCall:
        """As valid Unicode, so that every file can store it."""
        return self.with_texts(utf8)

    def with_texts(self, change: Callable[[str], str]) -> ToolCall:
        """With each field changed."""
        fields = {name: change(value) for name, value in self}
        return self if fields == dict(self) else ToolCall(**fields)

    @property
    def fit(self) -> ToolCall:
        """With a name and an id that every vendor takes; others refuse the whole request. A name
        that is changed stays apart from all others, such as that of a tool which was meant."""
        name = self.name
        if not NAME.fullmatch(name):
            legal = re.sub(r"^(?![a-zA-Z_])|[^a-zA-Z0-9_-]", "_", name)[:50]
            name = f"{legal}_{blake2b(name.encode(), digest_size=4).hexdigest()}"
        found = {"name": name, "id": fit_id(self.id)}
        fits = name == self.name and found["id"] == self.id
        return self if fits else self.model_copy(update=found)


def fit_id(id: str, form: str = r"[a-zA-Z0-9_-]{1,40}", length: int = 24) -> str:
    """A call's id as it is if it has the form, else letters and digits made of it: the same for
    the call and its result."""
    return id if re.fullmatch(form, id) else blake2b(id.encode()).hexdigest()[:length]


def _object(arguments: str) -> dict[str, Any] | None:
    """A call's arguments; None if they are no JSON object that can be written again."""
    try:
        found = json.loads(arguments.strip() or "{}")
        text = json.dumps(found, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return json.loads(utf8(text)) if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a tool is called. A function with a parameter of this type is given it; no model sees
    that parameter."""

    agent: str
    """The role that calls."""
    problem: Problem
    sandbox: Sandbox
    state: Any = None
    """The task's state in which the agent acts."""
    made: tuple[ToolCall, ...] = ()
    """The agent's calls before this one in the same turn, in order; calls of one answer too."""


class Said(str):
    """An agent's action: its text, with the calls that it made before it. A task whose state
    depends on calls reads them in `step`. Equal ones have equal text and calls, whatever ids a
    vendor gave these."""

    _calls: tuple[ToolCall, ...]

    def __new__(cls, text: str, calls: Sequence[ToolCall] = ()) -> Said:
        made = super().__new__(cls, text)
        made._calls = tuple(calls)
        return made

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """What was called, in order."""
        return self._calls

    def __eq__(self, other: object) -> bool:
        mine, others = ([(c.name, c.arguments) for c in calls_of(one)] for one in (self, other))
        return str.__eq__(self, other) is True and mine == others

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return str.__hash__(self)


def told_call(call: ToolCall, result: str | None = None) -> str:
    """A call as text, with its result if it is known here."""
    name, given = (unmarked(text[:CALL_CHARS]) for text in (call.name, call.arguments))
    more = "" if result is None else f": {unmarked(result[:CALL_CHARS])}"
    return f"{_CALLED} {name} {given}{more}]"


def unmarked(text: str) -> str:
    """Text that can't look like a call."""
    return text.replace(_CALLED, "[ called")


def calls_of(text: object) -> tuple[ToolCall, ...]:
    """The calls of an action; () for one that is plain text."""
    return text.calls if isinstance(text, Said) else ()


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that agents may call; build it with `tool`."""

    function: Callable[..., Any]
    spec: ToolSpec
    effects: bool
    """Whether a call changes anything outside: then no call is ever made twice, even if the process
    was killed in the middle of it."""
    timeout_s: float
    _arguments: TypeAdapter[dict[str, Any]] = field(repr=False, compare=False)
    _context: str | None = field(repr=False, compare=False)
    """The parameter that takes the ToolContext."""

    async def use(self, arguments: str, context: ToolContext) -> str:
        """The result of one call as text. A text that begins with `error:` says what went wrong.

        Raises SandboxError if the sandbox itself fails, which is no fault of the call.
        """
        if (asked := _object(arguments)) is None:
            return f"error: wrong arguments of {self.spec.name}: they are no JSON object"
        try:
            given = self._arguments.validate_json(json.dumps(asked))
        except Exception as error:  # a validator of the user's may raise anything
            return _cut(f"error: wrong arguments of {self.spec.name}: {reason(error)}")
        if self._context is not None:
            given[self._context] = context
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                return _cut(_text(await self._called(given)))
        except SandboxError:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, KeyboardInterrupt) or (task and task.cancelling()):
                raise
            if limit.expired():
                return f"error: {self.spec.name} took more than {self.timeout_s:g} s"
            return _cut(_raised(error))

    async def _called(self, given: Mapping[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**given)
        found = await _in_thread(self.function, given)
        return await found if inspect.isawaitable(found) else found


class ToolServer(ABC):
    """Something that has tools, which are known once it is reached."""

    @property
    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """Its tools. Raises ConfigError if it can't be reached."""


def tool(
    function: Callable[..., Any] | Tool,
    *,
    name: str | None = None,
    effects: bool = True,
    timeout_s: float = 60.0,
) -> Tool:
    """A function as a tool: name, signature and docstring are what models see.

    Each parameter needs a type that pydantic can read from JSON. `effects=False` promises that a
    call changes nothing, so that it may be made again after a kill. Raises ConfigError for a
    function that can't be called by name with JSON values.
    """
    if isinstance(function, Tool):
        return function
    name = name or str(getattr(function, "__name__", ""))
    if not callable(function) or not NAME.fullmatch(name):
        raise ConfigError(
            f"{function!r} can't be a tool under the name '{name}': give a function, with a name "
            "of at most 64 letters, digits, _ and -"
        )
    types, context = _parameters(function, name)
    try:
        arguments = TypeAdapter[dict[str, Any]](_dict_of(name, types))
        schema = arguments.json_schema()
    except (PydanticUserError, TypeError) as error:
        raise ConfigError(
            f"the parameters of tool {name} have no JSON schema ({reason(error)}): give them types "
            "such as str, int, list[str] or a pydantic model"
        ) from None
    for part in (schema, *schema["properties"].values()):
        part.pop("title", None)  # the name again, for which a model would be billed
    spec = ToolSpec(name=name, description=inspect.getdoc(function) or "", parameters=schema)
    return Tool(function, spec, effects, timeout_s, arguments, context)


def as_tools(given: Any) -> tuple[Tool | ToolServer, ...]:
    """Functions as tools; tools and servers as they are."""
    return tuple(one if isinstance(one, ToolServer) else tool(one) for one in given)


def named_once(role: str, given: Sequence[Tool | ToolServer]) -> tuple[Tool, ...]:
    """An agent's tools, those of servers too, each once. Raises ConfigError if two that differ have
    one name."""
    found = dict[str, Tool]()
    for one in given:
        for each in one.tools if isinstance(one, ToolServer) else (one,):
            if found.setdefault(each.spec.name, each) != each:
                raise ConfigError(
                    f"agent {role} has two tools '{each.spec.name}': give one of them another name"
                )
    return tuple(found.values())


def _parameters(function: Callable[..., Any], name: str) -> tuple[dict[str, Any], str | None]:
    """The types of what a model gives, and the parameter that takes the context."""
    types, context = dict[str, Any](), None
    try:
        hints = get_type_hints(function, include_extras=True)
        found = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"the signature of tool {name} can't be read: {reason(error)}") from None
    for one in found:
        if hints.get(one.name) is ToolContext:
            context = one.name
        elif one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise ConfigError(
                f"parameter {one.name} of tool {name} can't be given by name, as models give each "
                "argument"
            )
        elif one.name not in hints:
            raise ConfigError(
                f"parameter {one.name} of tool {name} has no type: write one, such as "
                f"{one.name}: str"
            )
        else:
            known = one.default is not one.empty
            types[one.name] = NotRequired[hints[one.name]] if known else hints[one.name]
    return types, context


def _dict_of(name: str, types: Mapping[str, Any]) -> Any:
    """A dictionary's type: unlike a model's fields, its keys may have any name."""
    make: Any = TypedDict  # type checkers know literal keys alone
    found = make(name, dict(types))
    found.__pydantic_config__ = ConfigDict(extra="forbid")
    return found


async def _in_thread(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """What a plain function returns, called in a thread of its own. One that hangs is left behind:
    neither other calls nor the end of the process wait for it."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    found = list[Any]()

    def work() -> None:
        try:
            found.extend((function(**given), None))
        except BaseException as error:
            found.extend((None, error))
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(done.set)

    Thread(target=work, daemon=True).start()
    await done.wait()
    result, error = found
    if isinstance(error, StopIteration):  # which can't leave a coroutine
        raise RuntimeError(f"StopIteration: {error}")
    if error is not None:
        raise error
    return result


def _text(found: Any) -> str:
    """A result as a model reads it: text as it is, else JSON, else Python's own form."""
    if isinstance(found, str):
        return found
    try:
        return to_json(found).decode()
    except PydanticSerializationError:
        return repr(found)


def _raised(error: BaseException) -> str:
    said = str(error)
    return f"error: {type(error).__name__}: {said}" if said else f"error: {type(error).__name__}"


def _cut(text: str) -> str:
    if len(text) <= RESULT_CHARS:
        return text
    return f"{text[:RESULT_CHARS]}\n({len(text) - RESULT_CHARS:,} characters more are left out)"
