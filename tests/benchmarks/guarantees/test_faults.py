"""The table of faults: it knows a right end from a wrong one, and one real run passes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.guarantees.faults import MANY, Case, Found, cases, mixed, options, play, section
from benchmarks.server.loopback import FAULTS

FOUND = Found(
    name="400",
    vendor="openai",
    codes=(0,),
    asked=20,
    finished=19,
    failed=1,
    failed_calls=2,
    requests=120,
    faults=2,
    billed=0.1,
    spent=0.2,
    lost=0.1,
    seconds=3.0,
    right=True,
)


def test_every_fault_is_drawn_at_both_vendors() -> None:
    found = mixed(10)
    assert {case.vendor for case in found} == {case.vendor for case in cases()}
    for case in found:
        shares = [getattr(case.options, fault) for fault in FAULTS]
        assert sum(shares) == pytest.approx(0.3)
        assert min(shares) > 0
        assert set(case.ends) <= {0, 3}


def test_the_section_counts_what_went_wrong() -> None:
    wrong = replace(FOUND, codes=(1,), asked=MANY, right=False)
    text = section([FOUND, wrong, replace(wrong, codes=(3, 0), right=True)])
    assert text.startswith("**2 of 3** runs")
    assert "**1 of 2** runs ended with 0 or 3" in text
    assert (
        "| 400 | openai | 19 of 20 | 1 | 2 | 120 | 2 | 0.1000 | 0.2000 | 0.1000 | 0 | 3 |" in text
    )


@pytest.mark.slow
def test_one_real_run_of_a_poisoned_prompt() -> None:
    found = play(Case("one prompt always 400", options(poison="Task 7:")))
    assert (found.codes, found.finished, found.failed, found.failed_calls) == ((0,), 19, 1, 2)
    assert found.right
