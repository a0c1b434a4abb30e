"""The scheme in which a main function works with its helper, and whether it does at all."""

from __future__ import annotations

from importlib import import_module
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import parse_code
from orchestry.task.registry import load_task
from tests.tasks.cooperation_programs import COORDINATOR, DECORATOR, FALLBACK, FILTER, NONE

load_task("code_collaboration")  # makes the package that its modules load below
usage_module = import_module("orchestry_tasks.code_collaboration.usage")
Usage, usage_of = usage_module.Usage, usage_module.usage_of

CASES = [
    pytest.param(code, wanted, id=f"{wanted}: {title}")
    for wanted, programs in {
        "fallback": FALLBACK,
        "decorator": DECORATOR,
        "coordinator": COORDINATOR,
        "strategy_filter": FILTER,
        "none": NONE,
    }.items()
    for title, code in programs.items()
]


def scheme(code: str) -> Any:
    return usage_of(code, "f").scheme


@pytest.mark.parametrize(("code", "wanted"), CASES)
def test_scheme(code: str, wanted: str) -> None:
    assert scheme(code) == wanted


@pytest.mark.parametrize(("code", "wanted"), CASES)
def test_a_scheme_is_a_use_that_is_not_thin(code: str, wanted: str) -> None:
    usage = usage_of(code, "f")
    assert (usage.used and not usage.thin) == (wanted != "none")
    assert usage.calls >= usage.used >= usage.thin


@pytest.mark.parametrize(
    ("title", "usage"),
    [
        ("comment", Usage()),
        ("bare", Usage(calls=True)),
        ("printed", Usage(calls=True)),
        ("named, not called", Usage()),
        ("defined", Usage(shadowed=True)),
        ("deleted", Usage(shadowed=True)),
        ("parameter", Usage(shadowed=True)),
        ("own method called aux", Usage()),
        ("nested, never called", Usage()),
        ("wrapper", Usage(calls=True, used=True, thin=True)),
        ("wrapper, alias", Usage()),
        ("wrapper, dead work", Usage(calls=True, used=True, thin=True)),
        ("no entry point", Usage()),
        ("no Python", Usage()),
    ],
)
def test_usage(title: str, usage: object) -> None:
    assert usage_of(NONE[title], "f") == usage


@given(st.text())
def test_any_text_has_a_scheme(text: str) -> None:
    found = usage_of(text, "f")
    assert found.scheme == "none"
    assert not found.used


_SIMPLE = """
x = aux(x)
r = aux(x)
r += 1
return r
return aux(x)
break
continue
pass
raise r
nonlocal r
del r
global r
x, *r = r, aux(x)
x, r = r, aux(x)
yield aux(x)
r = [aux(y) for y in x if r]
return (r := aux(x)) or x
g = lambda *a, b=r: aux(a)
x[aux(r)] = r
xs.append(g(r))
assert r, aux
import r
return g(r, *x, **r)
return map(aux, C().m(x).r[0])
self.r = aux(x)
g(aux)(lambda: r)
return r if x else f"{aux(r)}"
""".strip().splitlines()
_BLOCKS = """
if r:|
if aux(x) is None:|else:|
if 1 > 2:|else:|
try:|except E as e:|
try:|finally:|
try:|except:|else:|finally:|
for x in r:|
for r in ():|else:|
while aux(x):|
while True:|
with a as r:|
with suppress(E):|
def g(y, *z, k=aux):|
def f(x):|
class C(aux):|
def m(self, r=x):|
async def g(a, /, **b):|
""".strip().splitlines()


def _nested(bodies: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    def filled(block: str, bodies: list[list[str]]) -> list[str]:
        heads = block.split("|")[:-1]
        parts = zip(heads, bodies, strict=False)
        return [row for head, body in parts for row in (head, *(f" {line}" for line in body))]

    block = st.builds(filled, st.sampled_from(_BLOCKS), st.lists(bodies, min_size=4, max_size=4))
    return st.lists(block, min_size=1, max_size=3).map(lambda parts: [*chain.from_iterable(parts)])


_PROGRAMS = st.recursive(
    st.lists(st.sampled_from(_SIMPLE), min_size=1, max_size=4), _nested, max_leaves=8
)


@settings(max_examples=40)
@given(_PROGRAMS)
def test_any_program_has_a_scheme(lines: list[str]) -> None:
    code = "def f(x):\n r = None\n" + "\n".join(f" {line}" for line in lines)
    assert parse_code(code) is not None
    usage = usage_of(code, "f")
    assert usage.calls >= usage.used >= usage.thin
    assert (scheme(code) != "none") == (usage.used and not usage.thin)


_TOKENS = st.sampled_from([*"(x):*,[].=1\n\t", "def ", "f", "return ", "aux", " if ", "lambda "])


@given(st.lists(_TOKENS, max_size=30))
def test_any_tokens_have_a_scheme(tokens: list[str]) -> None:
    assert isinstance(scheme("".join(tokens)), str)
    assert isinstance(usage_of("".join(tokens), "f"), Usage)


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    return " + "-" * 900 + "aux(x)",
        "def f(x):\n" + "    if x: return aux(x)\n" * 500,
        "def f(x):\n" + "".join(" " * n + "while aux(x):\n" for n in range(1, 90)) + " " * 90 + "x",
        "def f(x):\n    return g0(aux(x))\n"
        + "".join(f"def g{n}(x):\n    return g{n + 1}(x) + g{n + 1}(x)\n" for n in range(60)),
        "def f(x):\n"
        + "".join(f"    a{n} = a{n + 1}\n" for n in range(900))
        + "    a900 = aux(x)\n    return a0",
    ],
    ids=["deep", "long", "nested loops", "many ways through functions", "long way back"],
)
def test_large_programs_end(code: str) -> None:
    assert isinstance(scheme(code), str)
