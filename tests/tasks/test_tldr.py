"""The bank is fixed, gold is worth 1, the parts are as worked out by hand, hacks earn little."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import BaseTask, Problem, Score, Tools
from orchestry.core.errors import ConfigError
from orchestry.core.types import SPLITS
from orchestry.task import prose
from orchestry.task.check import check_task
from orchestry.task.prose.words import CLASS_OF
from orchestry.task.registry import load_task
from tests.tasks.salads import shuffled

TASK: BaseTask[object] = load_task("tldr")
REWARD = import_module("orchestry_tasks.tldr.reward")
PROBLEMS = {problem.id: problem for split in SPLITS for problem in TASK.problems(split)}
GOLDS = {name: TASK.gold(p) or {} for name, p in PROBLEMS.items() if TASK.gold(p)}
PINNED = {"train": "bf6f7396202e7e57", "dev": "1951d9cb88aa1545", "test": "d925968ca5e17e71"}
POST = PROBLEMS["garden_slugs"].prompt
CONCISE, DETAILED = GOLDS["garden_slugs"]["concise"], GOLDS["garden_slugs"]["detailed"]
STUFFING = (
    "However, because, therefore, although, then, moreover, finally, since, for example, in short, "
    "as a result, overall, instead, while, until, next."
)


def total(concise: str, detailed: str, post: str = POST) -> float:
    pair = prose.Text(concise, post), prose.Text(detailed, post)
    return TASK.score(**REWARD.parts(*pair, TASK.options)).total


async def scored(problem: Problem, concise: str, detailed: str, tools: Tools) -> Score:
    state = TASK.reset(problem, seed=0)
    assert TASK.to_act(state) == ("concise", "detailed")
    state = TASK.step(state, {"concise": concise, "detailed": detailed})
    assert TASK.to_act(state) == ()
    return await TASK.evaluate(state, tools)


def test_the_splits_are_fixed() -> None:
    for split in SPLITS:
        ids = "\n".join(problem.id for problem in TASK.problems(split))
        assert hashlib.sha256(ids.encode()).hexdigest()[:16] == PINNED[split], split


def test_the_bank_is_large_and_apart() -> None:
    assert [len(TASK.problems(split)) for split in SPLITS] == [83, 21, 20]
    assert all(40 <= len(problem.prompt.split()) <= 120 for problem in PROBLEMS.values())
    assert all(any(p.id in GOLDS for p in TASK.problems(split)) for split in SPLITS)
    posts = [prose.Text(p.prompt, "").tokens for p in PROBLEMS.values()]
    alike = max(prose.overlap(a, b) for i, a in enumerate(posts) for b in posts[:i])
    assert alike < 0.15  # no template under them


@pytest.mark.parametrize("name", GOLDS)
async def test_gold_is_worth_one(name: str, tools: Tools) -> None:
    gold = GOLDS[name]
    score = await scored(PROBLEMS[name], gold["concise"], gold["detailed"], tools)
    assert score.total == pytest.approx(1.0)
    assert score.tags == ("sound", "whole")


@pytest.mark.slow
async def test_it_conforms(tools: Tools) -> None:
    findings = await check_task(TASK, tools.sandbox, seeds=(0, 1))
    assert [finding for finding in findings if not finding.ok] == []


# --- the parts, worked out by hand --------------------------------------------------------------


@pytest.mark.parametrize(
    ("chars", "worth"),
    [
        (55, 0.0),
        (82.5, 0.05),
        (110, 0.1),
        (135, 0.55),
        (160, 1.0),
        (320, 1.0),
        (410, 0.55),
        (500, 0.1),
        (750, 0.05),
        (1000, 0.0),
    ],
)
def test_ratio(chars: float, worth: float) -> None:
    concise, detailed = prose.Text("a" * 200, POST), prose.Text("b" * int(2 * chars), POST)
    found = prose.plateau(prose.ratio(concise, detailed), TASK.options.ratio)
    assert found == pytest.approx(worth)


@pytest.mark.parametrize(("more", "worth"), [(13, 0.0), (15, 0.2 / 0.7), (20, 1.0), (40, 1.0)])
def test_distinct_words(more: int, worth: float) -> None:
    stems = [a + b + "zk" for a in "bdfgklmnprt" for b in "aeiou"]
    concise, detailed = (
        prose.Text(" the ".join(stems[:count]) + " the " + stems[0], POST) for count in (10, more)
    )
    found = prose.ramp(prose.variety(concise, detailed), TASK.options.unique)
    assert found == pytest.approx(worth)


def test_style_is_two_fifths_transitions_and_three_fifths_words_in_common() -> None:
    one = prose.Text("slugs salad torch beans", POST)
    other = prose.Text("However, slugs left the lamp alone, because the lamp was hot.", POST)
    # in common: slug; in either: slug, salad, torch, bean, left, lamp, alon, hot
    assert prose.jaccard(one, other) == pytest.approx(1 / 8)
    assert REWARD.style(one, other, TASK.options) == pytest.approx(
        0.4 * (0.24 - 2 / 11) / 0.09 + 0.6
    )
    assert REWARD.style(other, one, TASK.options) == pytest.approx(0.6)
    far = TASK.options.model_copy(update={"jaccard": 0.5})
    assert REWARD.style(other, one, far) == pytest.approx(0.6 / 4)


def test_a_level_opens_the_next_in_proportion() -> None:
    """A ratio of 1.35 is worth 0.55, which is open; of 1.2 it is 0.28, and halves the rest."""
    full = REWARD.parts(*(prose.Text(t, POST) for t in (CONCISE, DETAILED)), TASK.options)
    assert full == pytest.approx(dict.fromkeys(full, 1.0))
    narrow = TASK.options.model_copy(update={"ratio": (2.0, 2.0 + 1e-9, 2.5, 3.6)})
    found = REWARD.parts(*(prose.Text(t, POST) for t in (CONCISE, DETAILED)), narrow)
    chars = len(DETAILED) / len(CONCISE)
    value = 0.1 + 0.9 * (3.6 - chars) / 1.1
    assert found["length"] == pytest.approx(1.0)
    assert found["ratio"] == pytest.approx(value)
    assert found["words"] == found["style"] == pytest.approx(min(1.0, 2 * value))


# --- hacks --------------------------------------------------------------------------------------

SENTENCES = [f"{sentence}." for sentence in POST.removesuffix(".").split(". ")]
LESS = [" ".join(w for i, w in enumerate(s.split()) if i % 4 != 3) + "." for s in SENTENCES]
PLAIN = prose.words(POST)
TOPICS = [word for word in PLAIN if word not in CLASS_OF]
HACKS: dict[str, tuple[str, str]] = {
    "empty": ("", ""),
    "nothing but marks": ("...", "!?!"),
    "one word": ("Slugs.", "Slugs, lettuce, beans."),
    "empty and gold": ("", DETAILED),
    "gold and empty": (CONCISE, ""),
    "copy of the post": (POST, POST),
    "copies of its sentences": (SENTENCES[0], " ".join(SENTENCES[1:3])),
    "copies behind a prefix": (f"So, {SENTENCES[0]}", f"However, then, {' '.join(SENTENCES[1:3])}"),
    "copies with words left out": (LESS[0], " ".join(LESS[1:3])),
    "gold and a copy": (CONCISE, " ".join(SENTENCES[:2])),
    "salad": (shuffled(PLAIN, 13, 1), shuffled(PLAIN, 36, 2)),
    "salad in sentences": (
        shuffled(PLAIN, 13, 1),
        " ".join(shuffled(PLAIN, 9, seed) for seed in range(4)),
    ),
    "keywords": (shuffled(TOPICS, 9, 1), shuffled(TOPICS, 25, 2)),
    "transitions": (" ".join(STUFFING.split()[:10]), STUFFING),
    "keywords and transitions": (shuffled(TOPICS, 9, 1), f"{shuffled(TOPICS, 15, 2)} {STUFFING}"),
    "overlong": (CONCISE * 40, DETAILED * 40),
    "overlong copy": (POST * 9, POST * 20),
    "the same text twice": (CONCISE, CONCISE),
    "the same text doubled": (CONCISE, f"{CONCISE} {CONCISE}"),
    "one inside of the other": (CONCISE, f"{CONCISE} {DETAILED}"),
    "swapped": (DETAILED, CONCISE),
    "gibberish": (
        "Qwer tzui opas dfgh jklm yxcv bnml qayw sxed.",
        "Plok mijn uhbz gvtf crdx eswa qyas dxcv fgbh njmk ilop. Qazw sxec drfv tgbz hnuj.",
    ),
    "babble": (
        "It is what it is and that is what it is.",
        "It is what it is, because it is what it is, and then it is what it was, so it is that.",
    ),
    "unrelated": tuple(GOLDS["museum_job"].values()),  # type: ignore[dict-item]
    "praise of itself": (
        "This is a very good and short summary of what the author has written here.",
        "This is an excellent summary because it tells you all that matters about what the author "
        "has said. However, it is longer than the other one, so you learn more from it in the end.",
    ),
}


@pytest.mark.parametrize("name", HACKS)
def test_a_hack_earns_little(name: str) -> None:
    assert total(*HACKS[name]) < 0.35


def mean_of(hack: Callable[[Problem, int], tuple[str, str]]) -> float:
    totals = [total(*hack(p, seed), p.prompt) for seed, p in enumerate(PROBLEMS.values())]
    return sum(totals) / len(totals)


def test_salads_of_any_post_earn_next_to_nothing() -> None:
    def salad(problem: Problem, seed: int) -> tuple[str, str]:
        found = prose.words(problem.prompt)
        return shuffled(found, 14, seed), shuffled(found, 36, seed + 1)

    assert mean_of(salad) < 0.05


def test_summaries_of_other_posts_earn_next_to_nothing() -> None:
    pairs = [*GOLDS.values()]

    def other(problem: Problem, seed: int) -> tuple[str, str]:
        chosen = pairs[seed % len(pairs)]
        own = GOLDS.get(problem.id) == chosen
        chosen = pairs[(seed + 1) % len(pairs)] if own else chosen
        return chosen["concise"], chosen["detailed"]

    assert mean_of(other) < 0.05


def test_stuffing_a_gold_with_transitions_loses() -> None:
    assert total(CONCISE, f"{DETAILED} {STUFFING}") < total(CONCISE, DETAILED) - 0.1


# --- dense, and defined everywhere --------------------------------------------------------------


def test_every_step_from_a_copy_to_a_summary_pays() -> None:
    """Word by word from the post's own sentences to the gold."""
    ours, theirs = DETAILED.split(), " ".join(SENTENCES[:3]).split()
    steps = [
        " ".join([*ours[:n], *theirs[n : len(ours)]]) for n in (*range(0, len(ours), 8), len(ours))
    ]
    totals = [total(CONCISE, said) for said in steps]
    assert totals[0] < 0.35
    assert totals[-1] == pytest.approx(1.0)
    assert len({round(number, 3) for number in totals if 0.02 < number < 0.98}) >= 2


PIECES = st.sampled_from(
    [*TOPICS[:12], *STUFFING.split(), "the", "of", ". ", "\n", "12", "\u2028", "é", "'s", "漢字"]
)
TEXTS = st.lists(PIECES, max_size=60).map(" ".join) | st.text(max_size=40)


@settings(max_examples=200)
@given(concise=TEXTS, detailed=TEXTS, post=TEXTS | st.just(POST))
def test_any_pair_is_scored_in_bounds(concise: str, detailed: str, post: str) -> None:
    pair = prose.Text(concise, post), prose.Text(detailed, post)
    found = REWARD.parts(*pair, TASK.options)
    assert set(found) == set(TASK.weights)
    assert all(0.0 <= value <= 1.0 for value in found.values())
    assert REWARD.remarks(*pair)
    assert ("whole" in REWARD.tags(*pair, found)) == (total(concise, detailed, post) > 1 - 1e-9)


async def test_a_score_says_what_was_measured(tools: Tools) -> None:
    problem = PROBLEMS["garden_slugs"]
    score = await scored(problem, POST, DETAILED, tools)
    assert "runs copied from it 1.00" in score.feedback
    assert {"copied"} <= set(score.tags)
    score = await scored(problem, "", DETAILED, tools)
    assert (score.feedback, score.total) == ("No words in: concise.", 0.0)
    assert "empty" in score.tags


def test_graded_answers_fall_in_worth() -> None:
    for name in GOLDS:
        pairs = TASK.graded(PROBLEMS[name])
        totals = [total(p["concise"], p["detailed"], PROBLEMS[name].prompt) for p in pairs]
        assert totals[0] == pytest.approx(1.0)
        assert max(totals[1:]) < 1.0
        assert totals[-1] == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": (1.6, 1.1, 3.2, 5.0)}, "ratio must rise"),
        ({"unique": (2.0, 2.0)}, "unique must rise"),
        ({"min_words": 9, "max_words": 8}, "min_words 9 is over max_words 8"),
        ({"bank": "reddit"}, "bank"),
        ({"rows": 0}, "rows"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_task("tldr", options=options)
