"""Runs a pytest file in a process that the solution never sees, whose `solution` is a stand-in.

The process has no files: pytest and the test file are in memory, and the test is collected from
there.
"""

from __future__ import annotations

import ast
import builtins
import errno
import marshal
import os
import re
import symtable
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from io import StringIO
from types import ModuleType
from typing import Any

from orchestry.sandbox.inside.candidate import MAX_WHY, Send
from orchestry.sandbox.inside.objects import SOLUTION
from orchestry.sandbox.inside.standin import NoAnswer, stand_in
from orchestry.sandbox.inside.tagged import dumps, dumps_record

_FILE = "test_solution.py"
_COLOURS = "pygments"
"""What pytest imports for output that nobody sees here."""
_ARGUMENTS = (
    *("-s", "--assert=plain", "-pno:cacheprovider", "-pno:faulthandler", "-pno:logging"),
    *("-pno:tmpdir", "-q"),
)
"""Without the plugins that need files. Asserts are rewritten below."""
_NO_TESTS = 5
"""How pytest ends then."""
_SHOWN, _SAID = 5, 300
"""Failures, and characters of pytest's own words."""


class Library(MetaPathFinder, Loader):
    """Imports pytest, and what it needs, from the job."""

    def __init__(self, modules: Sequence[tuple[str, bool, bytes | str]]) -> None:
        self._modules = {name: (package, code) for name, package, code in modules}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module of the job, or None."""
        if fullname.partition(".")[0] == _COLOURS:
            return ModuleSpec(fullname, self, is_package=True)
        if fullname not in self._modules:
            return None
        return ModuleSpec(fullname, self, is_package=self._modules[fullname][0])

    def exec_module(self, module: ModuleType) -> None:
        """Runs its code in it."""
        if module.__name__ not in self._modules:
            vars(module)["__getattr__"] = lambda name: type(name, (), {})
            return
        package, code = self._modules[module.__name__]
        place = module.__name__.replace(".", "/")
        module.__file__ = f"/{place}/__init__.py" if package else f"/{place}.py"
        compiled = marshal.loads(code) if isinstance(code, bytes) else compile(code, place, "exec")
        exec(compiled, vars(module))  # noqa: S102


class Results:
    """A plugin: brings the test file, and notes how its tests end."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._called, self._failed = set[str](), set[str]()
        self.total = 0
        self.failures: list[str] = []

    @property
    def passed(self) -> int:
        """How many tests ran to their end without a fault."""
        return len(self._called - self._failed)

    def pytest_collection(self, session: Any) -> bool:
        """Collects the tests, from memory. (pytest's own way would look for a file.)"""
        session.items = [*session.genitems(self._make(session))]
        session.testscollected = len(session.items)
        session.config.hook.pytest_collection_modifyitems(
            session=session, config=session.config, items=session.items
        )
        self.total += len(session.items)
        return True

    def pytest_collectreport(self, report: Any) -> None:
        """The file, or a class in it; one that can't be collected counts as a test."""
        if not report.passed:
            self.total += 1
            self._note(report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test's setup, call or teardown."""
        if not report.passed:
            self._note(report)
        elif report.when == "call":
            self._called.add(report.nodeid)

    def _note(self, report: Any) -> None:
        if report.nodeid not in self._failed and len(self.failures) < _SHOWN:
            name = report.nodeid.removeprefix(f"{_FILE}::")
            self.failures.append(f"{name}: {_why(report.longrepr)}")
        self._failed.add(report.nodeid)


def _why(found: Any) -> str:
    """What pytest says of a failure: an exception in a test; a skipped test; any other."""
    crash = getattr(found, "reprcrash", None)
    if crash is None:
        return str(found[-1] if isinstance(found, tuple) else found)
    text = str(crash.message).removeprefix(f"{NoAnswer.__module__}.{NoAnswer.__name__}: ")
    return re.sub(r" at 0x[0-9a-f]+", "", text)  # it differs from run to run


def run_pytest(job: dict[str, Any], ask: Callable[[bytes], bytes], send: Send) -> None:
    """One record: how many tests passed, of how many, and which failed first.

    Only a test that ran and passed counts: none that is skipped, or fails as expected. A file
    without tests, or one that can't be imported, counts as a test that failed.
    """
    _without_files()
    sys.meta_path.insert(0, Library(job["library"]))
    stand_in(ask)
    results = Results(partial(_file, job["test"]))
    said = _played(results)
    failures = "\n".join(results.failures) or said
    if not results.total:
        failures = failures or "the test file has no tests"
    value = dumps((results.passed, max(1, results.total)))
    why = failures.partition("\n")[0][:MAX_WHY]
    record = {"index": 0, "verdict": "value", "value": value, "why": why}
    send(dumps_record({**record, "trace": failures[:MAX_WHY]}))


def _played(results: Results) -> str:
    """Runs pytest; the end of what it says where it breaks off."""
    import pytest

    with redirect_stderr(StringIO()) as said, redirect_stdout(said):
        code = pytest.main([*_ARGUMENTS], plugins=[results])
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, _NO_TESTS):
        return ""
    return f"pytest broke off: {' '.join(said.getvalue().split())[-_SAID:]}"


def _file(text: str, session: Any) -> Any:
    """The test file, as pytest's collector."""
    import pytest
    from _pytest.assertion.rewrite import rewrite_asserts

    class File(pytest.Module):
        def _getobj(self) -> ModuleType:
            tree = _Named(_free(text)).visit(ast.parse(text, _FILE))
            rewrite_asserts(tree, text.encode(), _FILE, self.config)
            name = _FILE.partition(".")[0]
            module = sys.modules[name] = ModuleType(name)
            module.__file__ = f"/{_FILE}"
            exec(compile(tree, _FILE, "exec", dont_inherit=True), vars(module))  # noqa: S102
            return module

    return File.from_parent(session, path=session.path / _FILE)


class _Named(ast.NodeTransformer):
    """The test with `from solution import *` for the names that it needs, so that the solution
    can't bring tests, or replace what the test has from elsewhere."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        """An import."""
        if node.module != SOLUTION or node.names[0].name != "*":
            return node
        names = [ast.alias(name) for name in self._names]
        found = ast.ImportFrom(SOLUTION, names, 0) if names else ast.Import([ast.alias(SOLUTION)])
        return ast.fix_missing_locations(ast.copy_location(found, node))


def _free(text: str) -> list[str]:
    """The names that the test uses and neither binds nor has built in."""
    bound, used = {*dir(builtins), "__file__"}, set[str]()
    tables = [symtable.symtable(text, _FILE, "exec")]
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is tables[0] or symbol.is_global():
                binds = symbol.is_assigned() or symbol.is_imported()
                (bound if binds else used).add(symbol.get_name())
    return sorted(used - bound)


def _without_files() -> None:
    """No path exists here. The system says that nobody may look, which pytest does not expect."""

    def missing(*_: object, **__: object) -> Any:
        raise FileNotFoundError(errno.ENOENT, "there are no files in the sandbox")

    os.stat = os.lstat = os.scandir = os.listdir = missing
    os.getcwd, os.chdir = (lambda: "/"), (lambda path: None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
