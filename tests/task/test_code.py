"""Code is found in whatever way a model wraps it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import extract_code, parse_code
from orchestry.task.code import dump_code, join_code, unparse_code

CODE = "def f(x):\n    return x"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"```python\n{CODE}\n```", CODE),
        (f"Sure!\n\n```py\n{CODE}\n```\nThis returns x.", CODE),
        (f"```\n{CODE}\n```", CODE),
        (f"~~~python\n{CODE}\n~~~", CODE),
        ("```\r\nx = 'a\u2028\x85\x0cb'\r\ny = 1\r\n```", "x = 'a\u2028\x85\x0cb'\ny = 1"),
        (f"````python\n{CODE}\n````", CODE),
        (f"```python\n{CODE}", CODE),
        ("1. Do:\n   ```python\n   def f(x):\n       return x\n   ```", CODE),
        (f"```python\n{CODE}\n```\nUse it:\n```python\nprint(f(1))\n```", CODE),
        (f"```python\ndef f(x): return 0\n```\nBetter:\n```python\n{CODE}\n```", CODE),
        ("```python\ndef g(x): return 0\n```\n```python\nx = 1\n```", "x = 1"),
        (f"```python\n{CODE}\n```\nOr:\n```python\ndef f(x):\n    return max(", CODE),
        (f"{CODE}\n```\n\nThis returns x.", CODE),
        (f"{CODE}\n\nprint(f(1))\n```\nIt prints:\n```\n1\n```", CODE),
        (CODE, CODE),
        (f"Here it is:\n{CODE}\nIt returns x.", CODE),
        (f"import math\n\n{CODE}\n\nThat is all.", f"import math\n\n{CODE}"),
        (f"LIMIT = 3\n{CODE}", CODE),
        (f"{CODE}\n\nLIMIT = 3\n# done\nprose", f"{CODE}\n\nLIMIT = 3\n# done"),
        ("def f(\n    x,\n):\n    return x", "def f(\n    x,\n):\n    return x"),
        ("```python\nf = lambda x: x\n```\nTry:\n```python\nprint(f(2))\n```", "f = lambda x: x"),
        ("```python\nf = partial(pow, 2)\n```\n```python\nf(2)\n```", "f = partial(pow, 2)"),
        ("Here:\nf = lambda x: x\nIt returns x.", "f = lambda x: x"),
        ("```\n>>> def f(x):\n...     return x\n...\n>>> f(2)\n2\n```", f"{CODE}\n\nf(2)"),
        (">>> def f(x):\n...     return x\n\nIt returns x.", CODE),
        (
            f'```\n{CODE[:9]}\n    """\n    >>> import g\n    """\n```',
            f'{CODE[:9]}\n    """\n    >>> import g\n    """',
        ),
        ("", ""),
        ("LGTM", ""),
        ("I would import the module, then define f.", ""),
        ("```\n\n```", ""),
        ("```python", ""),
    ],
)
def test_extract_code(text: str, code: str) -> None:
    assert extract_code(text, "f") == code


MAIN = "def f(x):\n    return math.floor(half(x))"
HALF = "def half(x):\n    return x / PARTS"


def _answer(*blocks: str) -> str:
    return "\nand\n".join(f"```python\n{block}\n```" for block in blocks)


@pytest.mark.parametrize(
    ("blocks", "taken"),
    [
        (["import math", "def f(x):\n    return math.floor(x)"], [0, 1]),
        (["PARTS = 2", "import math", HALF, MAIN], [0, 1, 2, 3]),
        ([MAIN, HALF, "import math\nPARTS = 2"], [0, 1, 2]),
        (["import os", "def g(x):\n    return x", CODE], [2]),
        (["x = 1", CODE], [1]),
        (["half = abs\nimport math", "half = round", MAIN], [0, 1, 2]),
        (["half = abs", "import math\nhalf = round", MAIN], [1, 2]),
        (["from math import *", "def f(x):\n    return floor(x)"], [0, 1]),
        (["from typing import *", "floor = int", "def f(x):\n    return floor(x)"], [1, 2]),
        (["def half(x):\n    return (", "import math", MAIN], [1, 2]),
        (["def f(x):\n    return 0\n", "y = f(1)", CODE], [2]),
        (["class Box:\n    pass", "def f(x: Box) -> int:\n    return 1"], [0, 1]),
        (["def odd(n):\n    return n > 0 and f(n - 1)", "def f(n):\n    return odd(n)"], [0, 1]),
        (["def put(x):\n    global seen\n    seen = x", "def f(x):\n    return seen"], [0, 1]),
        ([MAIN, "import math", CODE], [2]),
    ],
)
def test_definitions_in_other_blocks_come_along(blocks: list[str], taken: list[int]) -> None:
    wanted = "\n\n".join(blocks[i].strip() for i in taken)
    assert extract_code(_answer(*blocks), "f") == wanted


def test_older_versions_and_examples_stay_behind() -> None:
    helper = "@staticmethod\ndef half(x):\n    return x / 2"
    first = f"import math; print(f(3))\n{helper}\ndef f(x):\n    return 0\nassert f(3) == 1"
    code = extract_code(_answer(first, MAIN), "f")
    assert code == f"import math\n{helper}\n\n{MAIN}"


def test_future_imports_stay_first() -> None:
    future = "from __future__ import annotations"
    code = extract_code(_answer("import math\nhalf = abs", f"{future}\n{MAIN}"), "f")
    assert code == f"{future}\n\nimport math\nhalf = abs\n\n{MAIN}"
    compile(code, "answer", "exec")


def test_joined_codes_are_one_module() -> None:
    future = "from __future__ import annotations"
    code = join_code(["", f"{future}\nx = 1\n", f"y = x\n{future}\n", "\n"])
    assert code == f"{future}\n\nx = 1\n\ny = x"
    compile(code, "joined", "exec")
    assert join_code([]) == join_code(["", "\n"]) == ""


def test_bare_code_supplies_too() -> None:
    text = f"import math\nhalf = abs\n\nThen:\n```python\n{MAIN}\n```"
    assert extract_code(text, "f") == f"import math\nhalf = abs\n\n{MAIN}"


@given(
    st.lists(st.sampled_from(["```", "~~~", "def f(x):", "    return g(x)", "g = h", "h = 1 +"]))
)
def test_any_answer_gives_text(lines: list[str]) -> None:
    assert isinstance(extract_code("\n".join(lines), "f"), str)


@given(st.text())
def test_any_text_parses_or_does_not(text: str) -> None:
    assert extract_code(text, "f") is not None
    parse_code(text)


@pytest.mark.parametrize("code", ["x = " + "(" * 5000, "\0", "x = " + "-" * 20000 + "1", "if:"])
def test_odd_code_is_no_code(code: str) -> None:
    assert parse_code(code) is None
    assert extract_code(f"```\ndef f(x): return g\n{code}\n```\n```\ng = 1\n```", "f")


@given(
    st.sampled_from([("-", "1", ""), ("1+", "1", ""), ("f(", "", ")"), ("not ", "x", "")]),
    st.integers(0, 3000),
    st.integers(0, 6000),
)
@settings(max_examples=40, deadline=None)
def test_any_tree_is_written_or_is_not(nest: tuple[str, str, str], depth: int, digits: int) -> None:
    before, middle, after = nest
    code = f"x = {before * depth}{middle}{after * depth}\ny = 0x1{'f' * digits}"
    tree = parse_code(code)
    if tree is not None:
        written = [dump_code(tree), unparse_code(tree)]
        assert all(text is None or text for text in written)
        assert None not in written or depth > 100 or digits > 3000
