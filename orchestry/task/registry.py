"""Finds tasks by name, and imports one on request.

A task is a folder with a `task.py`, or an entry point of the group `orchestry.tasks`. Folders are
loaded into a package made at run time, `orchestry_tasks`. So relative imports inside a task work,
`sys.path` stays unchanged, and no global package is called `tasks`. Listing imports nothing.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestry.core.errors import ConfigError, OrchestryError, TaskError, reason, unknown
from orchestry.core.files import text_of
from orchestry.core.types import AgentSpec
from orchestry.task.base import BaseTask

_PACKAGE = "orchestry_tasks"
GROUP = "orchestry.tasks"
_HERE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class TaskLocation:
    """A task's location: a folder, or an entry point."""

    name: str
    source: str
    """Which kind of place: `--task-path`, `./tasks`, `entry point` or `bundled`."""
    folder: Path | None = None
    entry_point: EntryPoint | None = None
    description: str = ""
    """First line of the task's README.md, else of the docstring of its task.py."""
    shadows: tuple[str, ...] = ()
    """Places of hidden tasks of the same name, nearest first."""

    @property
    def place(self) -> str:
        """The file, or the entry point's target, for messages."""
        if self.folder is not None:
            return str(self.folder / "task.py")
        return f"entry point {self.name} = {self.entry_point.value if self.entry_point else ''}"


def bundled(kind: str) -> Path:
    """The folder `tasks`, `configs` or `behaviors` that came with the package.

    In a wheel it is inside the package; an editable install uses the repository's folder.
    """
    inside = _HERE / "_bundled" / kind
    return inside if inside.is_dir() else _HERE.parent / kind


def find_tasks(task_path: Sequence[Path], cwd: Path) -> dict[str, TaskLocation]:
    """All tasks by name, sorted, nearest place first: explicit folders, ./tasks, entry points,
    bundled ones. Imports none of them.

    Raises ConfigError for a `task_path` that is not a folder of tasks.
    """
    found: dict[str, TaskLocation] = {}
    for location in _candidates(task_path, cwd):
        if (first := found.get(location.name)) is None:
            found[location.name] = location
        elif not _same(first, location):
            shadows = (*first.shadows, location.place)
            found[location.name] = replace(first, shadows=shadows)
    return dict(sorted(found.items()))


def load_task(
    name: str,
    task_path: Sequence[Path] = (),
    weights: Mapping[str, float] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    cwd: Path | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> BaseTask[Any]:
    """Imports the named task and makes one, with the run's reward weights and task options.

    Raises ConfigError for an unknown name, reward part or option, TaskError if the task's code
    raises or breaks BaseTask's contract. `warn` is told if the task hides another of its name.
    """
    cwd = cwd or Path.cwd()
    tasks = find_tasks(task_path, cwd)
    if name not in tasks:
        raise ConfigError(unknown("task", name, [*tasks]))
    location = tasks[name]
    if location.shadows:
        warn(f"task '{name}' is {location.place}, which hides {', '.join(location.shadows)}")
    task_class = _task_class(location, [folder for _, folder in _folders(task_path, cwd)])
    _check_class(task_class, location)
    try:
        return task_class(weights, options)
    except OrchestryError:
        raise
    except Exception as error:
        raise _raised(location, error) from error


def folder_of(task: BaseTask[Any]) -> Path | None:
    """The folder that the task was loaded from; None for an entry point."""
    module = type(task).__module__
    if not module.startswith(f"{_PACKAGE}."):
        return None
    return Path(sys.modules[module].__file__ or "").parent


# --- finding ------------------------------------------------------------------------------------


def _candidates(task_path: Sequence[Path], cwd: Path) -> Iterator[TaskLocation]:
    """Every task, in order of precedence; hidden ones come later."""
    folders = list(_folders(task_path, cwd))
    for source, parent in folders:
        if source != "bundled":
            yield from _in_folder(source, parent)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        summary = point.dist.metadata.json.get("summary", "") if point.dist else ""
        yield TaskLocation(point.name, "entry point", entry_point=point, description=str(summary))
    for source, parent in folders:
        if source == "bundled":
            yield from _in_folder(source, parent)


def _folders(task_path: Sequence[Path], cwd: Path) -> Iterator[tuple[str, Path]]:
    """The folders that contain task folders, each once and absolute, with their labels."""
    explicit = [("--task-path", _checked_path(cwd / path)) for path in task_path]
    implicit = [("./tasks", cwd / "tasks"), ("bundled", bundled("tasks"))]
    seen: set[Path] = set()
    for source, folder in [*explicit, *implicit]:
        resolved = folder.resolve()
        if resolved.is_dir() and resolved not in seen:
            seen.add(resolved)
            yield source, resolved


def _checked_path(path: Path) -> Path:
    if not path.is_dir():
        raise ConfigError(f"task path {path} is not a folder: give one that holds task folders")
    if (path / "task.py").is_file():
        raise ConfigError(f"task path {path} is a task itself: give the folder above it")
    return path


def _in_folder(source: str, parent: Path) -> Iterator[TaskLocation]:
    for folder in sorted(parent.iterdir()):
        if "." not in folder.name and (folder / "task.py").is_file():
            yield TaskLocation(folder.name, source, folder, description=_description(folder))


def _same(one: TaskLocation, other: TaskLocation) -> bool:
    """Whether two places hold the same task; a checkout does not hide its own installed copy."""
    if one.folder is None or other.folder is None:
        return one.place == other.place
    return _files(one.folder) == _files(other.folder)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _description(folder: Path) -> str:
    readme = folder / "README.md"
    if readme.is_file():
        lines = text_of(readme.read_bytes(), errors="replace").split("\n")
        if first := next((line for line in lines if line.strip("# \t")), ""):
            return first.strip("# \t")
    try:
        docstring = ast.get_docstring(ast.parse((folder / "task.py").read_bytes()))
    except (SyntaxError, ValueError):
        return "(task.py is not valid Python)"
    return (docstring or "").partition("\n")[0]


# --- importing ----------------------------------------------------------------------------------


def _task_class(location: TaskLocation, path: Sequence[Path]) -> type[BaseTask[Any]]:
    """The one task class of a location; imports its module."""
    try:
        if location.folder is not None:
            loaded: Any = _import_folder(location.name, location.folder, path)
        else:
            assert location.entry_point is not None
            loaded = location.entry_point.load()
    except (Exception, SystemExit) as error:
        raise _raised(location, error) from error
    if isinstance(loaded, ModuleType):
        return _only_class(loaded, location)
    if inspect.isclass(loaded) and issubclass(loaded, BaseTask):
        return loaded
    raise TaskError(f"{location.place} is not a subclass of BaseTask: point it at one")


def _import_folder(name: str, folder: Path, path: Sequence[Path]) -> ModuleType:
    """`orchestry_tasks.<name>.task`, loaded from this folder only."""
    root = sys.modules.get(_PACKAGE)
    if root is None:
        root = sys.modules[_PACKAGE] = module_from_spec(ModuleSpec(_PACKAGE, None, is_package=True))
    root.__path__ = [str(parent) for parent in path]
    package = f"{_PACKAGE}.{name}"
    if getattr(sys.modules.get(package), "__path__", None) != [str(folder)]:
        _forget(package)
        importlib.invalidate_caches()
        _import_package(package, folder)
    try:
        return importlib.import_module(f"{package}.task")
    except BaseException:  # a half-imported task must not stay for the next attempt
        _forget(package)
        raise


def _import_package(package: str, folder: Path) -> None:
    """The task's own package. Python's own search would make a folder without `__init__.py` a
    namespace package, which mixes in files of hidden tasks; so it is made here."""
    init = folder / "__init__.py"
    if init.is_file():
        spec = spec_from_file_location(package, init, submodule_search_locations=[str(folder)])
        assert spec is not None
    else:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    module = module_from_spec(spec)
    sys.modules[package] = module
    if spec.loader is not None:
        try:
            spec.loader.exec_module(module)
        except BaseException:
            _forget(package)
            raise


def _forget(package: str) -> None:
    for module in [*sys.modules]:
        if module == package or module.startswith(f"{package}."):
            del sys.modules[module]


# --- checking -----------------------------------------------------------------------------------


def _only_class(module: ModuleType, location: TaskLocation) -> type[BaseTask[Any]]:
    """The task class defined in the module itself; imported classes don't count."""
    own = [
        item
        for item in vars(module).values()
        if inspect.isclass(item)
        and issubclass(item, BaseTask)
        and item.__module__ == module.__name__
    ]
    whole = [item for item in own if not inspect.isabstract(item)]
    if len(whole) == 1:
        return whole[0]
    if whole:
        names = " and ".join(item.__name__ for item in whole)
        raise TaskError(f"{location.place} defines {names}: keep one, and import the others")
    if own:
        missing = ", ".join(sorted(own[-1].__abstractmethods__))
        raise TaskError(f"{location.place}: {own[-1].__name__} lacks {missing}: define them")
    raise TaskError(f"{location.place} defines no task: write a subclass of BaseTask or TeamTask")


def _check_class(task: type[BaseTask[Any]], location: TaskLocation) -> None:
    """Checks the attributes that every layer relies on."""
    if fault := _fault(task, location.name):
        raise TaskError(f"{location.place}: {task.__name__} {fault}")


def _fault(task: type[BaseTask[Any]], name: str) -> str:
    found = getattr(task, "name", None)
    if found != name:
        return f"has the name {found!r}: set name = {name!r}, as in `--task {name}`"
    agents = getattr(task, "agents", None)
    if not isinstance(agents, tuple) or not all(isinstance(item, AgentSpec) for item in agents):
        return f"has agents {agents!r}: set agents = (AgentSpec(role=...), ...)"
    roles = [agent.role for agent in agents]
    if not roles or len(set(roles)) < len(roles):
        return f"has the roles {roles}: name at least one agent, and each role once"
    odd = [role for role in roles if not role.isprintable() or not 0 < len(role) <= 200]
    if odd:
        return f"has the role {odd[0][:40]!a}: name each in 1 to 200 printable characters"
    numbers = [*task.weights.values()]
    usable = all(isinstance(n, int | float) and math.isfinite(n) and n >= 0 for n in numbers)
    if not usable or sum(numbers) <= 0:
        return f"has weights {dict(task.weights)}: numbers >= 0, and some must be positive"
    return ""


def _raised(location: TaskLocation, error: BaseException) -> TaskError:
    """A task's exception as one line, with the place in its code."""
    inside = str(location.folder) if location.folder else ""
    lines = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if inside and frame.filename.startswith(inside)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"{error.filename}, line {error.lineno}")
    place = lines[-1] if lines else location.place
    return TaskError(
        f"task '{location.name}' can't be loaded: {place} raised {type(error).__name__}: "
        f"{reason(error)}: fix that line (--verbose shows the traceback)"
    )
