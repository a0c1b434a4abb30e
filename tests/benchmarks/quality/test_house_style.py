"""The scripted model keeps the rules it knows and no others, and the whole learner teaches it."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.quality.house_model import (
    BREAKS,
    BRIEF,
    CONVENTIONS,
    PROBLEMS,
    PROMPTS,
    RULES,
    SLIPS,
    USELESS,
    Model,
    known,
    rendered,
    reward,
)
from benchmarks.quality.house_report import Variant, report
from benchmarks.quality.house_style import Bench
from orchestry.backends.library import NEAR, similarity
from orchestry.core.types import SPLITS

BRIEFS = {name: BRIEF.Brief.of(problem) for name, problem in PROBLEMS.items()}


def asked_for(count: int) -> dict[str, Any]:
    """As much of a distil call's schema as the model reads."""
    return {"properties": {"behaviors": {"maxItems": count}}}


@pytest.mark.parametrize("name", RULES)
def test_it_breaks_one_convention_at_a_time(name: str) -> None:
    for brief in BRIEFS.values():
        broken = {*CONVENTIONS.broken(rendered(brief, {name}), brief)}
        # A count from 13 to 999 has the same form everywhere.
        assert broken == {name} or (name == "digits" and 12 < brief.count < 1000 and not broken)


def test_nothing_broken_is_the_gold() -> None:
    assert all(rendered(brief, ()) == brief.gold for brief in BRIEFS.values())


def test_it_has_habits_of_its_own_seed() -> None:
    drawn = [Model(seed).habits for seed in range(5)]
    assert len({tuple(habits.values()) for habits in drawn}) == 5
    assert all({*habits.values()} == {BREAKS, SLIPS} for habits in drawn)
    assert Model(3).habits == Model(3).habits


@pytest.mark.parametrize("split", SPLITS)
def test_it_starts_near_two_fifths_and_earns_all_with_every_rule(split: str) -> None:
    names = [name for name, problem in PROBLEMS.items() if problem.split == split]
    plays = [(Model(seed), name) for seed in range(4) for name in names]
    assert fmean(reward(*play, rules="") for play in plays) == pytest.approx(0.4, abs=0.05)
    assert min(reward(*play, rules=" ".join(RULES.values())) for play in plays) == pytest.approx(1)


def test_an_editor_keeps_what_the_writer_knew() -> None:
    name, brief = next(iter(BRIEFS.items()))
    asked = PROMPTS.for_editor(brief.kind, brief.gold)
    texts = [Model(0).answer("", asked, f"{name} {draw}", None) for draw in range(200)]
    kept = fmean("date" not in CONVENTIONS.broken(text, brief) for text in texts)
    assert kept > 0.85
    assert Model(0).answer("", PROMPTS.for_editor(brief.kind, ""), "", None) == "(no draft)"


def test_it_distils_what_the_feedback_names_and_repeats_no_rule() -> None:
    shown = f"- date: wrong\n- unit: wrong\n- candidate: {RULES['unit']}"
    answers = [Model(1).answer("", shown, str(draw), asked_for(3)) for draw in range(60)]
    texts = [one["text"] for said in answers for one in json.loads(said)["behaviors"]]
    assert {*texts} <= {RULES["date"], *USELESS}
    assert RULES["date"] in texts
    both = "- date: wrong\n- unit: wrong\n"
    said = json.loads(Model(1, per_rule=3).answer("", both, "2", asked_for(1)))["behaviors"]
    assert known(said[0]["text"]) in ({"date", "unit"}, set())


def test_no_two_rules_are_taken_for_near_duplicates() -> None:
    texts = [*RULES.values(), *USELESS]
    pairs = [(one, other) for one in texts for other in texts if one < other]
    assert max(similarity(*pair) for pair in pairs) < NEAR


@pytest.mark.slow
def test_the_learner_teaches_it_conventions_that_hold_for_other_texts(tmp_path: Path) -> None:
    """Over HTTP, with distilling, trials and evaluation; only the run is shorter."""
    variant = Variant("rules of three conventions", {}, per_rule=3)
    seed = Bench(tmp_path, episodes=10, samples=2).play(variant, 1)
    assert (seed.run.summary.stopped, seed.run.summary.updates) == ("done", 2)
    assert len(seed.learned) >= 3
    assert seed.false == 0
    assert seed.gain > 0.1
    again = Bench(tmp_path, episodes=10, samples=2).play(variant, 1)
    assert (again.learned, again.gain) == (seed.learned, seed.gain)
    told = report({variant: [seed]}, 10, 2)
    assert "| rules of three conventions | " in told
    assert f"{seed.gain:+.3f}" in told
