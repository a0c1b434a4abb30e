"""The survey of families: one that is right, one that is refused, one that is another by peft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.guarantees import families
from benchmarks.guarantees.families import Outcome, body, outcome

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # of transformers and peft, to each other
]


@pytest.mark.parametrize(
    ("family", "kind", "said"),
    [
        ("qwen2", "right", "q_proj"),
        ("phimoe", "right", "q_proj"),
        ("bert", "refused", "sees later tokens"),
        ("xmod", "refused", "Input language unknown"),
        ("gemma3", "refused", "reads images or sound too"),
        ("nonesuch", "not built", "KeyError"),
    ],
)
def test_a_family_is_right_or_refused_with_the_reason(
    tmp_path: Path, family: str, kind: str, said: str
) -> None:
    found = outcome(family, tmp_path)
    assert (found.kind, said in found.said) == (kind, True)


def test_a_base_that_peft_loads_as_another_model_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = families._plain

    def other(*given: Any) -> Any:
        return (one - 0.1 for one in plain(*given))

    monkeypatch.setattr(families, "_plain", other)
    assert outcome("qwen2", tmp_path).kind == "wrong"


def test_the_page_groups_families_by_outcome_and_reason() -> None:
    found = [
        Outcome("a", "right", "k_proj, q_proj", 1e-6),
        Outcome("b", "right", "gate_proj, q_proj", 2e-6),
        Outcome("c", "refused", "local: c has layers of type x, and only full attention is ..."),
        Outcome("d", "refused", "something new"),
    ]
    said = body(found, (1.5, 2.0))
    assert "2 are right" in said
    assert "at most 2e-06 nats" in said
    assert "0 are wrong" in said
    assert "as plain transformers and peft compute it | 2 | `a`, `b`" in said
    assert "something new | 1 | `d`" in said
