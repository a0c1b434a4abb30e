"""Notes and bank hold together, gold is worth 1, tricks earn little, parts as worked out."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from importlib import import_module
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.quality.prose_attacks import STRANGE, exchanged
from orchestry import BaseTask, Problem, Score, Tools
from orchestry.core.errors import ConfigError
from orchestry.core.types import SPLITS
from orchestry.task.check import check_task
from orchestry.task.registry import load_task

TASK: BaseTask[Any] = load_task("research")
CITED, NOTES, REWARD = (
    import_module(f"orchestry_tasks.research.{name}") for name in ("cited", "notes", "reward")
)
ROLES = ("retriever", "analyst", "writer")
PROBLEMS = {problem.id: problem for split in SPLITS for problem in TASK.problems(split)}
GOLDS = {name: p.data["gold"] for name, p in PROBLEMS.items() if "gold" in p.data}
HARROW = PROBLEMS["harrow_height"]
IDS, CLAIMS, ANSWER = GOLDS["harrow_height"]
NOBODY, WRITER_ONLY = 0.1, 0.25
"""What a team earns at most in the mean where nobody works, and what is left of the writer's parts,
over those that retriever and analyst earned, where the writer plays a trick."""
Say = Callable[[Problem, str], str]


def work(problem: Problem, ids: str, claims: str, answer: str) -> Any:
    pool = NOTES.pool(problem, TASK.options.pool)
    return REWARD.Work(problem, TASK.options, pool, CITED.ids(ids), claims, answer)


def total(problem: Problem, ids: str, claims: str, answer: str) -> float:
    return TASK.score(**REWARD.parts(work(problem, ids, claims, answer))).total


async def scored(problem: Problem, said: tuple[str, str, str], tools: Tools) -> Score:
    state = TASK.reset(problem, 0)
    for role, text in zip(ROLES, said, strict=True):
        assert TASK.to_act(state) == (role,)
        state = TASK.step(state, {role: text})
    assert TASK.to_act(state) == ()
    return await TASK.evaluate(state, tools)


# --- notes and bank -----------------------------------------------------------------------------


def test_the_splits_are_fixed() -> None:
    assert [len(TASK.problems(split)) for split in SPLITS] == [24, 8, 8]
    ids = "\n".join(problem.id for split in SPLITS for problem in TASK.problems(split))
    assert hashlib.sha256(ids.encode()).hexdigest()[:16] == "a49955f7e3545dc5"
    assert all(any(p.id in GOLDS for p in TASK.problems(split)) for split in SPLITS)
    assert len(GOLDS) >= 12


def test_no_note_is_needed_in_two_splits() -> None:
    needed = [{n for p in TASK.problems(split) for n in NOTES.needed(p)} for split in SPLITS]
    assert not needed[0] & needed[1] | needed[0] & needed[2] | needed[1] & needed[2]


def test_notes_are_short_and_numbered() -> None:
    notes = NOTES.notes()
    assert [*notes] == [f"N{number:02d}" for number in range(1, 70)]
    for note in notes.values():
        assert 2 <= len(CITED.sentences(note.text)) <= 4
        assert 15 <= len(note.text.split()) <= 60
    assert len({note.title for note in notes.values()}) == len(notes)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_key_fact_stands_in_its_note_and_in_no_other_of_the_pool(name: str) -> None:
    problem = PROBLEMS[name]
    facts, pool = NOTES.facts(problem), NOTES.pool(problem, 10)
    assert 2 <= len(facts) <= 4
    assert {fact.note for fact in facts} <= {note.id for note in pool}
    assert len(pool) == 10
    for fact in facts:
        assert fact.stated(NOTES.notes()[fact.note].text)
        assert not fact.stated(problem.prompt)
    assert NOTES.pool(problem, 10) == pool


@pytest.mark.parametrize("name", GOLDS)
async def test_gold_is_worth_one(name: str, tools: Tools) -> None:
    score = await scored(PROBLEMS[name], GOLDS[name], tools)
    assert score.total == pytest.approx(1.0), score.feedback
    assert set(score.tags) == {"whole", "answered", "retrieved"}


@pytest.mark.slow
async def test_it_conforms(tools: Tools) -> None:
    findings = await check_task(TASK, tools.sandbox, seeds=(0, 1))
    assert [finding for finding in findings if not finding.ok] == []


# --- who sees what ------------------------------------------------------------------------------


def test_each_sees_only_what_the_one_before_handed_on() -> None:
    state = TASK.reset(HARROW, 0)
    seen = TASK.observe(state, "retriever")
    assert "N04: Harrow lighthouse surveyed" in seen
    assert "47" not in seen
    state = TASK.step(state, {"retriever": "I take N04 and N99, also N04."})
    seen = TASK.observe(state, "analyst")
    assert NOTES.notes()["N04"].text in seen
    assert NOTES.notes()["N03"].text not in seen
    state = TASK.step(state, {"analyst": "It is 47 metres high. [N04]"})
    seen = TASK.observe(state, "writer")
    assert "It is 47 metres high. [N04]" in seen
    assert "modern instruments" not in seen


def test_at_most_so_many_notes_reach_the_analyst() -> None:
    every = " ".join(note.id for note in NOTES.pool(HARROW, 10))
    assert len(work(HARROW, every, "", "").retrieved) == TASK.options.picks == 4


# --- the parts, worked out by hand --------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "f1"),
    [("N03 N04", 1.0), ("N04", 2 / 3), ("N03 N04 N01 N02", 2 / 3), ("N01", 0.0), ("", 0.0)],
)
def test_retrieval_is_f1_beyond_naming_all(named: str, f1: float) -> None:
    floor = 2 * 2 / (2 + 10)
    found = REWARD.retrieval(work(HARROW, named, "", ""))
    assert found == pytest.approx(max(0.0, (f1 - floor) / (1 - floor)))
    every = " ".join(note.id for note in NOTES.pool(HARROW, 10))
    assert REWARD.retrieval(work(HARROW, every, "", "")) == 0.0


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It is high [N04].", [("It is high.", ("N04",))]),
        ("It is high. [N04]", [("It is high.", ("N04",))]),
        ("It is 3.5 m (N04, N05) and old.", [("It is 3.5 m and old.", ("N04", "N05"))]),
        ("- It is high N04\n- It is old [N05] [N05].",
         [("It is high", ("N04",)), ("It is old.", ("N05",))]),
        ("They catch the train [N04]. See N05.", [("They catch the train.", ("N04",))]),
        ("N04: It is high. It is old.", [("It is high.", ("N04",)), ("It is old.", ("N04",))]),
        ("", []),
    ],
)  # fmt: skip
def test_citations_are_read_in_many_forms(
    text: str, sentences: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert [(one.text, one.ids) for one in CITED.sentences(text)] == sentences


@pytest.mark.parametrize(
    ("said", "support"),
    [
        ("The ground beside the tower slopes [N04].", 1.0),
        ("The ground beside the tower slopes.", 0.2),
        ("The ground beside the tower slopes [N01].", 0.0),
        ("The ground beside the tower slopes [N99].", 0.0),
        ("The ground beside the tower slopes [N03, N04].", 0.5),
        ("Sheep eat seaweed and cheese ripens in caves [N04].", 0.0),
    ],
)
def test_a_sentence_is_borne_out_by_the_notes_that_it_cites(said: str, support: float) -> None:
    (sentence,) = CITED.sentences(said)
    assert work(HARROW, "N03 N04 N01", "", "").support(sentence) == pytest.approx(support)


def test_a_fact_counts_beside_its_own_note_only() -> None:
    said = CITED.sentences
    have = work(HARROW, IDS, "", "")
    assert have.covered(said("It is 47 metres high [N04].")) == [1.0, 0.0, 0.0]
    assert have.covered(said("It is 47 metres high [N03].")) == [0.0, 0.0, 0.0]
    assert have.covered(said("It is 47 metres high.")) == [0.2, 0.0, 0.0]
    assert have.covered(said("It is 471 metres high [N04].")) == [0.0, 0.0, 0.0]
    unseen = work(HARROW, "N03", "", "")
    assert unseen.covered(said("It is 47 metres high [N04].")) == [0.0, 0.0, 0.0]


async def test_what_the_notes_correct_halves_the_facts(tools: Tools) -> None:
    wrong = ANSWER.replace("a height of 47 metres", "a height of 47, or it is 52 metres high,")
    score = await scored(HARROW, (IDS, CLAIMS, wrong), tools)
    assert "trapped" in score.tags
    coverage = next(part.value for part in score.parts if part.name == "coverage")
    assert coverage == pytest.approx(0.5, abs=0.05)


def test_every_stage_is_worth_something_of_its_own() -> None:
    stages = [("", "", ""), (IDS, "", ""), (IDS, CLAIMS, ""), (IDS, CLAIMS, ANSWER)]
    assert [total(HARROW, *said) for said in stages] == pytest.approx([0.0, 0.2, 0.35, 1.0])
    without = total(HARROW, IDS, "", ANSWER)
    assert without == pytest.approx(0.85)


def test_graded_answers_fall_in_worth() -> None:
    for name in GOLDS:
        graded = [tuple(one[role] for role in ROLES) for one in TASK.graded(PROBLEMS[name])]
        totals = [total(PROBLEMS[name], *said) for said in graded]
        assert totals[0] == pytest.approx(1.0)
        assert max(totals[1:]) < 0.85
        assert totals[-1] == 0.0


# --- tricks -------------------------------------------------------------------------------------


def shuffled(text: str, seed: int = 1) -> str:
    words = text.split()
    return " ".join(random.Random(seed).sample(words, len(words)))


def cite(problem: Problem, said: Callable[[str], str]) -> str:
    return " ".join(f"{said(name)} [{name}]." for name in NOTES.needed(problem))


def note_words(name: str) -> list[str]:
    return str(NOTES.notes()[name].text).replace(".", "").replace(",", "").split()


def gold(problem: Problem, place: int) -> str:
    return str(problem.data["gold"][place])


def salad(problem: Problem, seen: str) -> str:
    found = CITED.sentences(gold(problem, 2))
    return " ".join(f"{shuffled(s.text.strip('.'))} [{', '.join(s.ids)}]." for s in found)


def every_id(problem: Problem, seen: str) -> str:
    return " ".join(note.id for note in NOTES.pool(problem, 10))


IDLE: dict[str, Say] = {
    "empty": lambda p, seen: "",
    "the prompt": lambda p, seen: seen,
    "every id": every_id,
    "every id after a sentence": lambda p, s: f"It is known to all of us [{every_id(p, s)}].",
    "nothing new": lambda p, s: cite(p, lambda n: "This has been known for a very long time"),
    "overlong": lambda p, seen: "The note says what is asked for in the question [N04]. " * 40,
    "gold of another": lambda p, seen: gold(HARROW if p != HARROW else PROBLEMS["comet_tamm"], 2),
}


@pytest.mark.parametrize("name", IDLE)
@pytest.mark.slow
def test_a_team_that_does_not_work_earns_next_to_nothing(name: str) -> None:
    totals = []
    for key in GOLDS:
        state = TASK.reset(PROBLEMS[key], 0)
        for role in ROLES:
            answer = IDLE[name](PROBLEMS[key], TASK.observe(state, role))
            answer = every_id(PROBLEMS[key], "") if role == "retriever" and answer else answer
            state = TASK.step(state, {role: answer})
        totals.append(total(PROBLEMS[key], *(state.last(role) for role in ROLES)))
    assert fmean(totals) < NOBODY


TRICKS: dict[str, Say] = {
    **{name: say for name, say in IDLE.items() if name != "gold of another"},
    "word salad": salad,
    "key facts alone": lambda p, seen: " ".join(f"{f.any[0]} [{f.note}]." for f in NOTES.facts(p)),
    "a list": lambda p, s: cite(p, lambda n: ", ".join(note_words(n)[:20])),
    "a list with ands": lambda p, s: cite(
        p, lambda n: f"It is about the {' and the '.join(note_words(n)[:13])}"
    ),
    "the titles": lambda p, s: cite(
        p, lambda n: f"There is a note on {NOTES.notes()[n].title.lower()}, which tells all of it"
    ),
    "the question": lambda p, s: cite(p, lambda n: f"They ask this, {p.prompt.lower()[:-1]}"),
    "without citations": lambda p, seen: CITED.uncited(gold(p, 2)),
    "wrong ids": lambda p, seen: CITED.uncited(gold(p, 2)).replace(".", " [N99]."),
    "over-long": lambda p, seen: gold(p, 2) * 6,
}  # fmt: skip


@pytest.mark.parametrize("name", TRICKS)
@pytest.mark.slow
def test_a_writers_trick_adds_little_to_what_the_others_earned(name: str) -> None:
    gained = []
    for key in GOLDS:
        state = TASK.step(TASK.reset(PROBLEMS[key], 0), {"retriever": gold(PROBLEMS[key], 0)})
        state = TASK.step(state, {"analyst": gold(PROBLEMS[key], 1)})
        answer = TRICKS[name](PROBLEMS[key], TASK.observe(state, "writer"))
        ids, claims, _ = GOLDS[key]
        gained.append(total(PROBLEMS[key], ids, claims, answer) - 0.35)
    assert fmean(gained) < 0.11
    assert max(gained) < WRITER_ONLY


def test_verbatim_sentences_earn_less_than_ones_own() -> None:
    totals = []
    for key, (ids, claims, _) in GOLDS.items():
        problem = PROBLEMS[key]
        first = cite(problem, lambda n: NOTES.notes()[n].text.split(". ")[0].strip("."))
        whole = cite(problem, lambda n: NOTES.notes()[n].text.replace(".", ";"))
        totals += [total(problem, ids, claims, copied) for copied in (first, whole)]
    assert fmean(totals) < 0.6
    assert max(totals) < 0.75


HONEST = {
    "harrow_before": (
        "Monks fed a bonfire for the ships [N01]. Mira Vold built the lighthouse of granite [N02].",
        "Monks kept a fire there for the ships [N01]. Mira Vold built the lighthouse [N02].",
    ),
    "harrow_lamp": (
        "The lamp burned whale oil first [N05]. Then it burned paraffin [N05]. "
        "Pike left when the lamp became automatic [N06].",
        "It first burned whale oil and then paraffin [N05]. "
        "Keeper Pike left because the lamp went automatic [N06].",
    ),
    "moth_food": (
        "The caterpillar eats bog willow [N14]. The adult has no mouth [N14]. "
        "It flies in June [N13].",
        "The caterpillar eats only bog willow [N14]. The adult has no mouth [N14]. "
        "It flies in June [N13].",
    ),
    "lune_people": (
        "Marant brought it from Bohemia [N48]. An apprentice learns five years [N51].",
        "Ilse Marant from Bohemia brought the recipe [N48]. "
        "An apprentice learns for five years [N51].",
    ),
    "kessing_mirror": (
        "Olga Brandt paid [N58]. Workers ground it by hand for three years [N59].",
        "Widow Olga Brandt paid for everything [N58]. "
        "Workers ground the mirror by hand for three years [N59].",
    ),
}
"""Claims and answers in short active sentences, with hardly a word that the notes don't have."""


@pytest.mark.parametrize("name", HONEST)
def test_a_short_answer_in_the_notes_words_is_no_copy(name: str) -> None:
    problem = PROBLEMS[name]
    assert total(problem, " ".join(NOTES.needed(problem)), *HONEST[name]) > 0.8


@settings(max_examples=60)
@given(
    name=st.sampled_from([*PROBLEMS]),
    share=st.floats(0.3, 1.0),
    seed=st.integers(0, 999),
)
def test_the_notes_with_words_exchanged_earn_less_than_any_honest_answer(
    name: str, share: float, seed: int
) -> None:
    rng, problem = random.Random(seed), PROBLEMS[name]
    said = list[str]()
    for note in NOTES.needed(problem):
        for one in CITED.sentences(NOTES.notes()[note].text):
            if any(fact.note == note and fact.stated(one.text) for fact in NOTES.facts(problem)):
                kept = exchanged(one.text, STRANGE, share, rng)
                said.append(f"{kept[:-1]} [{note}].")
    text = " ".join(said)
    assert total(problem, " ".join(NOTES.needed(problem)), text, text) <= 0.5


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("Gas heats furnace [N50].", "it is too short"),
        (" ".join(["Today gas heats the furnace [N50]."] * 3), "its sentences are one"),
        ("The lighthouse, the oil, the lamp, the keeper, the tower and the stone, the sea [N50].",
         "it is a list"),
    ],
)  # fmt: skip
async def test_the_feedback_says_why_a_text_counts_little(
    answer: str, why: str, tools: Tools
) -> None:
    problem = PROBLEMS["lune_furnace"]
    score = await scored(problem, (" ".join(NOTES.needed(problem)), "", answer), tools)
    _, _, said = score.feedback.partition("The writer's text counts little, since ")
    assert why in said
    assert "counts little" not in (await scored(HARROW, GOLDS["harrow_height"], tools)).feedback


def test_pasted_claims_lose_the_prose_and_citing_all_loses_more() -> None:
    for key, (ids, claims, answer) in GOLDS.items():
        assert total(PROBLEMS[key], ids, claims, claims) < 0.93
        every = ", ".join(note.id for note in NOTES.pool(PROBLEMS[key], 10))
        flood = CITED.uncited(answer).replace(".", f" [{every}].")
        assert total(PROBLEMS[key], ids, claims, flood) < 0.75


PIECES = st.sampled_from(
    ["[N04]", "N03,", "47", "the lighthouse", "slopes", "shadow.", "\n", "- ", "[N", "(N999)", "é",
     "It is", "high.", "because", "\u2028", "[[N04]]"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=30).map(" ".join) | st.text(max_size=40)


@settings(max_examples=150)
@given(ids=TEXTS, claims=TEXTS, answer=TEXTS)
def test_any_texts_are_scored_in_bounds(ids: str, claims: str, answer: str) -> None:
    found = REWARD.parts(work(HARROW, ids, claims, answer))
    assert set(found) == set(TASK.weights)
    assert all(0.0 <= value <= 1.0 for value in found.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"pool": 3}, "pool"), ({"picks": 0}, "picks"), ({"max_words": 5}, "max_words")],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_task("research", options=options)
