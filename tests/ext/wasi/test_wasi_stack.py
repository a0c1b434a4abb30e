"""The numbers of a module that give it a deep stack: changed, and run, or refused."""

from __future__ import annotations

import pytest

from orchestry.core.errors import SandboxError
from orchestry.ext.wasi.wasi import STACK, deepen

wasmtime = pytest.importorskip("wasmtime")

SMALL = """(module
  (memory (export "memory") 160)
  (global (mut i32) (i32.const 524288))
  (func (export "pointer") (result i32) (global.get 0))
  (func (export "nested") (param i32) (result i32)
    (i32.store offset=24 (i32.load offset=12 (local.get 0)) (i32.const 500))
    (i32.load offset=24 (i32.load offset=12 (local.get 0))))
  (data (i32.const 524288) "as it was")
  (@custom "told" "by a tool"))"""
"""What is sought of CPython's, and no more."""
OLD_END = 160 << 16


def test_the_stack_lies_behind_all_that_was_there() -> None:
    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    module = wasmtime.Module(engine, deepen(wasmtime.wat2wasm(SMALL)))
    exports = wasmtime.Instance(store, module, []).exports(store)
    memory = exports["memory"]
    assert exports["pointer"](store) == memory.data_len(store) == OLD_END + STACK
    assert bytes(memory.read(store, 524288, 524297)) == b"as it was"
    assert not any(memory.read(store, OLD_END, OLD_END + STACK))
    assert exports["nested"](store, 64) == 3200
    assert memory.grow(store, 1) == (OLD_END + STACK) >> 16  # where the heap goes on


def test_nothing_else_changes() -> None:
    renumbered = SMALL.replace("160", "2208").replace("524288))", f"{2208 << 16}))")
    assert deepen(wasmtime.wat2wasm(SMALL)) == wasmtime.wat2wasm(renumbered.replace("500", "3200"))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("160)", "161)", "stack"),
        ("160)", "160 4096)", "stack"),
        ('(memory (export "memory") 160)', "", "stack"),
        ("(i32.const 524288))\n", "(i32.const 524289))\n", "stack"),
        ("(global (mut i32)", "(global i32", "stack"),
        ("(global (mut", "(global i32 (i32.const 1)) (global (mut", "stack"),
        ("500", "501", "nesting"),
        ("(i32.load offset=12 (local.get 0)) (", "(local.get 0) (", "nesting"),
    ],
)
def test_other_numbers_are_refused(old: str, new: str, found: str) -> None:
    assert old in SMALL
    with pytest.raises(SandboxError, match=rf"another build .*unexpected {found}\)"):
        deepen(wasmtime.wat2wasm(SMALL.replace(old, new, 1)))


def test_two_places_to_change_are_one_too_many() -> None:
    store = "(i32.store offset=24 (i32.load offset=12 (local.get 0)) (i32.const 500))"
    with pytest.raises(SandboxError, match=r"unexpected nesting"):
        deepen(wasmtime.wat2wasm(SMALL.replace(store, store * 2)))
