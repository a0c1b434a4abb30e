"""Code is found in whatever way a model wraps it."""

from __future__ import annotations

from importlib import import_module

import pytest

from orchestry.registry import load_task

load_task("code_review")  # makes the package that its modules load below
extract_code = import_module("orchestry_tasks.code_review.extract").extract_code
CODE = "def f(x):\n    return x"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"```python\n{CODE}\n```", CODE),
        (f"Sure!\n\n```py\n{CODE}\n```\nThis returns x.", CODE),
        (f"```\n{CODE}\n```", CODE),
        (f"~~~python\n{CODE}\n~~~", CODE),
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
        ("", ""),
        ("LGTM", ""),
        ("I would import the module, then define f.", ""),
        ("```\n\n```", ""),
        ("```python", ""),
    ],
)
def test_extract_code(text: str, code: str) -> None:
    assert extract_code(text, "f") == code
