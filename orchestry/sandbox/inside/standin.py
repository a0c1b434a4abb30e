"""The module `solution` of a test: its names stand for what is in the solution's process.

Nothing that the solution returns may pass for a plain value that the test expects. So a test has
objects only of classes that it names. (Their names begin with a capital; else a solution could make
a class of a function.) An object that was returned equals no plain value, is not ordered among them
and takes part in no arithmetic with them. What the test makes itself, as in `Stack()`, is in no
other value's place, and the test may try it in all ways.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import RLock
from types import ModuleType
from typing import Any, ClassVar

from orchestry.sandbox.inside.objects import (
    ARITHMETIC,
    ASKS,
    ORDERED,
    RAISED,
    SCALARS,
    SOLUTION,
    Packed,
    pack,
    unpack,
)
from orchestry.sandbox.inside.tagged import dumps, loads_record, untag

_GONE = "the solution broke its channel"
_BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
_ENDS = (StopIteration, StopAsyncIteration)


_PLAIN = SCALARS | {list, tuple, set, frozenset, dict}


class NoAnswer(BaseException):
    """The solution gave no answer: it took too long, ended, or returned what no test can have. A
    test that expects an error does not take this for one."""


class Channel:
    """Operations on what the solution's process keeps."""

    def __init__(self, ask: Callable[[bytes], bytes]) -> None:
        self._ask = ask
        self._given: list[Callable[..., Any]] = []
        """The test's functions that the solution has."""
        self._seen: dict[tuple[int, bool], Remote] = {}
        """One stand-in per object, so that `is` holds."""
        self._classes: dict[str, Any] = {}
        self._bases: dict[str, list[str]] = {}
        self._wanted: set[str] = set()
        """The classes that the test took from the solution."""
        self._handed: set[str] = set()
        """Those that the solution gave as a value: what they make is not the test's own."""
        self._failed: AssertionError | None = None
        """Of a function of the test's, which the solution called."""
        self._lock = RLock()

    def load(self) -> None:
        """Loads the solution. Raises ImportError if that fails."""
        try:
            _, bases = self._reply(dumps(("classes",)))
            self._bases = {str(name): [str(base) for base in bases[name]] for name in bases}
            for name in self._bases:
                if "BaseException" in self._bases[name]:  # it may be raised before it is named
                    self.kind(name)
        except (NoAnswer, *_BROKEN) as error:
            why = error if isinstance(error, NoAnswer) else _GONE
            raise ImportError(f"the solution can't be imported: {why}") from None

    def do(self, operation: str, *args: Any, **named: Any) -> Any:
        """What an operation comes to, or raises what it raises."""
        return self.found(self.packed(operation, *args, **named))

    def packed(self, operation: str, *args: Any, **named: Any) -> Packed:
        """The same, as the solution's process says it."""
        with self._lock:
            return self._asked(operation, args, named)

    def _asked(self, operation: str, args: Any, named: Any) -> Packed:
        message = dumps((operation, pack(args, self._keep), pack(named, self._keep)))
        try:
            verdict, content = self._reply(message)
            while verdict == ASKS:
                number, given, more = content
                content = self._given[number], self.found(given), self.found(more)
                verdict, content = self._reply(self._called(*content))
            error = self._error(content, operation) if verdict == RAISED else None
            kind, *_ = content
        except _BROKEN:
            raise NoAnswer(_GONE) from None
        failed, self._failed = self._failed, None
        if failed or error:
            raise failed or error  # type: ignore[misc]
        return (kind, *_)

    def found(self, packed: Packed) -> Any:
        """A value or a stand-in."""
        try:
            return unpack(packed, self._find)
        except _BROKEN:
            raise NoAnswer(_GONE) from None

    def make(self, kind: Any, args: Any, named: Any) -> Any:
        """What the test itself makes of a class."""
        packed = self.packed("call", kind, *args, **named)
        if packed[0] != "object" or kind.__name__ in self._handed:
            return self.found(packed)
        return self._object(packed, made=True)

    def _reply(self, message: bytes) -> tuple[str, Any]:
        """A verdict and its value."""
        try:
            record = loads_record(self._ask(message))
        except (EOFError, OSError):
            raise NoAnswer("the solution ended its process") from None
        if "value" not in record:
            raise NoAnswer(str(record.get("why")))
        return record["verdict"], untag(record["value"])

    def _called(self, function: Callable[..., Any], args: Any, named: Any) -> bytes:
        """Calls a function of the test's for the solution."""
        try:
            return dumps(("returned", pack(function(*args, **named), self._keep)))
        except Exception as error:
            if isinstance(error, AssertionError):
                self._failed = error  # which the solution may pass over
            return dumps((RAISED, type(error).__name__, (str(error),)))

    def _error(self, content: Any, operation: str) -> BaseException:
        """What the solution raised, by the first of its classes that a test can know."""
        kinds, args, state = content
        for name in kinds:
            kind = self._classes.get(name) or getattr(builtins, name, None)
            if not isinstance(kind, type) or not issubclass(kind, (Exception, SystemExit)):
                continue
            if issubclass(kind, (KeyboardInterrupt, GeneratorExit)):  # they end more than a test
                continue
            if issubclass(kind, _ENDS) and operation != "next":  # in a test's `zip` it is no error
                continue
            error = kind(*args)
            vars(error).update(state)
            return error
        return NoAnswer(f"the solution raised what no test can know: {content!r:.200}")

    def _keep(self, value: Any) -> Packed:
        """What a test gives that is no plain data."""
        kind = type(value)
        if kind is Solution:
            return (SOLUTION, 0)
        if isinstance(value, (Remote, Function, Items)):
            return ("kept", number_of(value))
        theirs = kind is type and value.__module__ == SOLUTION  # an exception
        if kind is Kind or theirs or (kind is type and _built_in(value)):
            return ("class", value.__name__)
        if isinstance(value, (range, type({}.keys()), type({}.values()), type({}.items()))):
            return pack([*value], self._keep)
        if hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools"):
            return ("iterator of", [pack(item, self._keep) for item in value])
        if callable(value):
            self._given.append(value)
            return ("function", len(self._given) - 1)
        raise TypeError(
            f"a test can't give the solution a {kind.__name__}, but plain data, functions and "
            "objects of the solution's own"
        )

    def _find(self, packed: Packed) -> Any:
        kind, number, what = packed
        if kind == "iterator":
            return Items(number)
        if kind == "function":
            return Function(number, str(what))
        if kind == "class" and what in self._wanted:
            self._handed.add(what)
            return self.kind(what)
        if kind == "class" and isinstance(found := getattr(builtins, what, None), type):
            return found
        if kind == "object" and (found := self._object(packed, made=False)) is not None:
            return found
        name = what[0] if kind == "object" else what
        raise NoAnswer(
            f"the solution gave a {name}, and a test can have plain data, functions, iterators and "
            "objects of classes that it imports, whose names begin with a capital"
        )

    def _object(self, packed: Packed, *, made: bool) -> Any:
        _, number, kinds = packed
        for name in kinds:
            if name in self._wanted and name in self._bases:
                if (number, made) not in self._seen:
                    self._seen[number, made] = _standing(self.kind(name), number, made)
                return self._seen[number, made]
        return None

    def kind(self, name: str) -> Any:
        """The stand-in for a class of the solution's; an exception's is one, to be raised here."""
        if name not in self._classes:
            rest = [base for base in self._bases[name] if base != name]
            own = [self.kind(base) for base in rest if base in self._bases]
            built_in = [getattr(builtins, base) for base in rest if base not in self._bases]
            errors = [one for one in [*own, *built_in] if issubclass(one, BaseException)]
            bases = errors or own or [Remote]
            least = [b for b in bases if not any(b is not o and issubclass(o, b) for o in bases)]
            make, slots = (type, {}) if errors else (Kind, {"__slots__": ()})
            self._classes[name] = make(name, tuple(least), {"__module__": SOLUTION, **slots})
        return self._classes[name]

    def take(self, name: str) -> Any:
        """What stands for one of the solution's names."""
        if name in self._bases and name[0].isupper():
            self._wanted.add(name)
            return self.kind(name)
        found = self.do("getattr", sys.modules[SOLUTION], name)
        if isinstance(found, Function):
            vars(found)["named"] = True
        return found


def _built_in(kind: type) -> bool:
    return getattr(builtins, kind.__name__, None) is kind


class Kind(type):
    """A class of the solution's."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        if cls.__module__ != SOLUTION:
            raise NoAnswer(f"a test can't derive {cls.__name__} from a class of the solution's")
        return Remote.channel.make(cls, args, named)

    def __getattr__(cls, name: str) -> Any:
        return Remote.channel.do("getattr", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        raise NoAnswer(f"a test can't patch the solution's {cls.__name__}.{name}")

    def __iter__(cls) -> Iterator[Any]:
        return Remote.channel.do("iter", cls)  # type: ignore[no-any-return]

    def __len__(cls) -> int:
        return Remote.channel.do("len", cls)  # type: ignore[no-any-return]

    def __getitem__(cls, key: Any) -> Any:
        return Remote.channel.do("getitem", cls, key)


class Remote:
    """An object of the solution's."""

    channel: ClassVar[Channel]
    __slots__ = ("_at",)
    _at: tuple[int, bool]
    """Its number, and whether the test made it."""

    def __getattr__(self, name: str) -> Any:
        return self.channel.do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.channel.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.channel.do("delattr", self, name)

    def __eq__(self, other: object) -> Any:
        return _compared("eq", self, other)

    def __contains__(self, item: Any) -> bool:
        if _made(self):
            return self.channel.do("contains", self, item)  # type: ignore[no-any-return]
        return any(one is item or one == item for one in iter(self))

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.channel.do("call", self, *args, **named)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        hides = self.channel.do("exit", self, kind, None, None)
        # Neither a test's own failure nor that of the channel may be hidden.
        return hides and issubclass(kind or Exception, Exception) and kind is not AssertionError


_AT = vars(Remote)["_at"]
Named = Callable[..., Any]


def _standing(kind: Any, number: int, made: bool) -> Any:
    found = object.__new__(kind)
    _AT.__set__(found, (number, made))
    return found


def number_of(value: Any) -> int:
    """The number of what a stand-in stands for."""
    return int(_AT.__get__(value)[0] if isinstance(value, Remote) else vars(value)["number"])


def _made(value: Remote) -> bool:
    return bool(_AT.__get__(value)[1])


def _comparable(mine: Remote, other: object) -> bool:
    return isinstance(other, Remote) or (_made(mine) and type(other) in _PLAIN)


def _compared(operation: str, mine: Remote, other: object) -> Any:
    if not _comparable(mine, other):
        return NotImplemented
    return mine.channel.do(operation, mine, other)


def _reckoned(operation: str, mine: Remote, other: object, *, turned: bool = False) -> Any:
    """Arithmetic."""
    if not _comparable(mine, other):
        raise NoAnswer(f"the solution returned an object, and the test wants {operation} of it")
    return mine.channel.do(operation, *((other, mine) if turned else (mine, other)))


def _own(operation: str, mine: Remote) -> Any:
    """What would make a plain number of an object."""
    if not _made(mine):
        raise NoAnswer(f"the solution returned an object, and the test wants {operation} of it")
    return mine.channel.do(operation, mine)


def _forwarded(operation: str) -> Named:
    def forward(self: Remote, *args: Any) -> Any:
        return self.channel.do(operation, self, *args)

    return forward


def _bound(function: Named, operation: str, **more: Any) -> Named:
    def method(self: Remote, *other: Any) -> Any:
        return function(operation, self, *other, **more)

    return method


def _complete() -> None:
    """Gives Remote the methods that are all alike."""
    for name in ("len", "iter", "next", "reversed", "str", "repr", "bool", "hash", "enter"):
        setattr(Remote, f"__{name}__", _forwarded(name))
    for name in ("getitem", "setitem", "delitem", "neg", "pos"):
        setattr(Remote, f"__{name}__", _forwarded(name))
    for name in ("abs", "int", "float", "round"):
        setattr(Remote, f"__{name}__", _bound(_own, name))
    for name in ORDERED:
        setattr(Remote, f"__{name}__", _bound(_compared, name))
    for name in ARITHMETIC:
        bare = name.rstrip("_")
        setattr(Remote, f"__{bare}__", _bound(_reckoned, name))
        setattr(Remote, f"__r{bare}__", _bound(_reckoned, name, turned=True))


_complete()


class Function:
    """A function, a method or whatever else of the solution's can only be called."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.__name__ = number, name
        self.named = False
        """Whether the test took it by its name; then it may look at it too."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        return Remote.channel.do("call", self, *args, **named)

    def __repr__(self) -> str:
        return f"{SOLUTION}.{self.__name__}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not self.named:
            raise AttributeError(f"a function of the solution's has no {name} for a test")
        return Remote.channel.do("getattr", self, name)


class Items:
    """An iterator of the solution's."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> Any:
        return Remote.channel.do("next", self)


class Solution(ModuleType):
    """The module that a test imports."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Remote.channel.take(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("__"):
            raise NoAnswer(f"a test can't patch the solution's {name}")
        super().__setattr__(name, value)


class Finder(MetaPathFinder, Loader):
    """Imports the stand-in where a test imports the solution."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The solution, or None."""
        return ModuleSpec(fullname, self) if fullname == SOLUTION else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Solution(SOLUTION)

    def exec_module(self, module: ModuleType) -> None:
        """Loads the solution."""
        Remote.channel.load()


def stand_in(ask: Callable[[bytes], bytes]) -> None:
    """From now on `import solution` gives the stand-in of what answers to `ask`."""
    Remote.channel = Channel(ask)
    sys.meta_path.insert(0, Finder())
