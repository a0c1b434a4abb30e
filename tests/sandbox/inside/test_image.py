"""The standard library in memory: what it serves, what it leaves out, and that it needs no file.

What is installed for good runs in an interpreter of its own, started as a server's is.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import py_compile
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestry.sandbox.inside.image import LEFT_OUT, TWINS, Image
from orchestry.sandbox.worker import FLAGS, _interpreter, _program

_INSTALL = """
import json, marshal, os, sys, types
for name, code in marshal.loads(sys.stdin.buffer.read()):
    sys.modules[name] = module = types.ModuleType(name)
    exec(code, module.__dict__)
    if name.endswith(".image"):
        image = module
def say(value):
    print(json.dumps(value))
"""
"""What a server does before it confines itself, up to the image."""
_NO_FILES = """
image.serve_imports()
def forbid(event, args):
    if event == "open":
        raise PermissionError(args)
sys.addaudithook(forbid)
"""

NEED_WHAT_IS_OUT = {"ssl"}


def inside(body: str, *flags: str) -> Any:
    """What `say` was given by a program that finds `image` loaded."""
    command = [_interpreter(), *FLAGS, *flags, "-c", _INSTALL + body]
    done = subprocess.run(command, input=_program(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout.splitlines()[-1])


def loaded(image: Image, name: str) -> ModuleType:
    spec = image.find_spec(name, None)
    assert isinstance(spec, ModuleSpec)
    module = importlib.util.module_from_spec(spec)
    image.exec_module(module)
    return module


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small one of every kind."""
    files = {
        "plain.py": "here = __name__",
        "kept.py": "here = 'compiled'",
        "foreign.py": "here = 'from source'",
        "latin.py": "# coding: latin-1\nhere = '\xe4'",
        "empty.py": "",
        "ctypes.py": "",
        "not-a-name.py": "",
        "notes.txt": "",
        "pack/__init__.py": "here = __path__",
        "pack/part.py": "here = __package__",
        "pack/ctypes.py": "here = 'within a package'",
        "pack/deep/__init__.py": "",
        "pack/deep/part.py": "here = __package__",
        "pack/test/__init__.py": "",
        "idlelib/__init__.py": "",
        "idlelib/run.py": "",
        "loose/part.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
    # As distributions do that leave sources alone: nobody compares the two.
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tmp_path / "kept.py"), invalidation_mode=unchecked)
    (tmp_path / "kept.py").write_text("here = 'from source'")
    foreign = py_compile.compile(str(tmp_path / "foreign.py"))
    assert foreign is not None
    Path(foreign).write_bytes(b"\0\0\r\n" + bytes(12) + marshal.dumps(None))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("plain", "plain"),
        ("kept", "compiled"),
        ("foreign", "from source"),
        ("latin", "\xe4"),
        ("pack", []),
        ("pack.part", "pack"),
        ("pack.ctypes", "within a package"),
        ("pack.deep.part", "pack.deep"),
    ],
)
def test_a_module_is_run_as_it_was_compiled_or_from_its_text(
    library: Path, name: str, here: object
) -> None:
    assert loaded(Image(str(library)), name).here == here


def test_an_empty_module_is_a_module(library: Path) -> None:
    assert loaded(Image(str(library)), "empty").__name__ == "empty"


@pytest.mark.parametrize("compiled", [True, False])
def test_no_file_is_read_later(library: Path, compiled: bool) -> None:
    name = "kept" if compiled else "plain"
    image = Image(str(library))
    for path in library.rglob(f"{name}*.py*"):
        path.unlink()
    assert loaded(image, name).here == ("compiled" if compiled else "plain")


def test_packages_are_told_from_modules(library: Path) -> None:
    image = Image(str(library))
    found = {name: image.find_spec(name, None) for name in ("pack", "pack.deep", "pack.part")}
    paths = {name: spec and spec.submodule_search_locations for name, spec in found.items()}
    assert paths == {"pack": [], "pack.deep": [], "pack.part": None}


@pytest.mark.parametrize(
    "name",
    [
        "ctypes",
        "idlelib",
        "idlelib.run",
        "pack.test",
        "loose",
        "loose.part",
        "not-a-name",
        "notes",
        "absent",
    ],
)
def test_what_is_left_out_or_no_module_is_not_found(library: Path, name: str) -> None:
    assert Image(str(library)).find_spec(name, None) is None


def test_a_library_without_modules_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(OSError, match=str(folder)):
            Image(str(folder))


def test_an_interpreter_without_its_library_says_where_it_looked() -> None:
    body = """
os.__file__ = "/nowhere/os.py"
try:
    image.serve_imports()
except OSError as error:
    say(str(error))
"""
    assert "/nowhere" in inside(body)


@pytest.mark.parametrize("compiled", [True, False])
def test_programs_import_without_opening_a_file(tmp_path: Path, compiled: bool) -> None:
    body = """
import asyncio, concurrent.futures, email.mime.text, json.decoder, pkgutil, xml.etree.ElementTree
from collections import abc
from importlib import resources
from xml.dom import minidom
say([
    json.decoder.JSONDecoder().decode("[1]"),
    xml.etree.ElementTree.fromstring("<a>b</a>").text,
    minidom.parseString("<a/>").documentElement.tagName,
    email.mime.text.MIMEText("a").get_content_type(),
    email.mime.__spec__.submodule_search_locations,
    sys.path,
])
"""
    flags = () if compiled else ("-X", f"pycache_prefix={tmp_path}")
    found = inside(_NO_FILES + body, *flags)
    assert found == [[1], "b", "a", "text/plain", [], []]
    assert not [*tmp_path.rglob("minidom*")], "what the interpreter starts with may be kept there"


def test_all_but_what_is_left_out_can_be_imported() -> None:
    """Of what this interpreter itself can import."""
    names = sorted(sys.stdlib_module_names - LEFT_OUT - {"this"})
    body = f"""
def fails(name):
    try:
        __import__(name)
    except ImportError:
        return True
say([name for name in {names} if fails(name)])
"""
    lost = set(inside(_NO_FILES + body)) - set(inside(body))
    assert lost <= TWINS | NEED_WHAT_IS_OUT


@pytest.mark.parametrize("name", ["sqlite3", "test.support", "turtle", "idlelib.run", "_ssl"])
def test_a_name_that_is_left_out_can_not_be_imported(name: str) -> None:
    body = f"""
try:
    import {name}
except ModuleNotFoundError as error:
    say(str(error))
"""
    assert name.partition(".")[0] in inside(_NO_FILES + body)
