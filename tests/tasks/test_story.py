"""The bank is fixed, gold is worth 1, each agent earns its own part, hacks earn little."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import Problem, Score, Tools, Transcript
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import SPLITS
from orchestry.task import prose
from orchestry.task.base import BaseTask
from orchestry.task.check import check_task
from orchestry.task.prose.words import CLASS_OF
from orchestry.task.registry import load_task
from tests.tasks.salads import in_sentences, refilled, shuffled, thinned

TASK: BaseTask[Transcript] = load_task("story")
REWARD = import_module("orchestry_tasks.story.reward")
PLOT = import_module("orchestry_tasks.story.plot")
CRAFT = import_module("orchestry_tasks.story.craft")
ROLES = ("writer", "editor", "narrator")
PROBLEMS = {problem.id: problem for split in SPLITS for problem in TASK.problems(split)}
GOLDS = {name: gold for name, p in PROBLEMS.items() if (gold := TASK.gold(p))}
PINNED = {"train": "21e10e55e17b3836", "dev": "f424a794f495b2ac", "test": "cd943d6f6903cca2"}
PROBLEM = PROBLEMS["lighthouse_key"]
PREMISE = PROBLEM.prompt
DRAFT, EDITED, TOLD = GOLDS["lighthouse_key"].values()


def parts(
    draft: str, edited: str = "", telling: str = "", *, problem: Problem = PROBLEM
) -> dict[str, Any]:
    work = REWARD.Work(problem, TASK.options, (draft,), (edited,), telling)
    return dict(work.parts())


def total(draft: str, edited: str, telling: str, *, problem: Problem = PROBLEM) -> float:
    return TASK.score(**parts(draft, edited, telling, problem=problem)).total


def test_the_bank_is_fixed_large_and_apart() -> None:
    for split in SPLITS:
        ids = "\n".join(problem.id for problem in TASK.problems(split))
        assert hashlib.sha256(ids.encode()).hexdigest()[:16] == PINNED[split], split
    assert [len(TASK.problems(split)) for split in SPLITS] == [24, 8, 8]
    golds = [sum(p.id in GOLDS for p in TASK.problems(split)) for split in SPLITS]
    assert golds == [6, 4, 3]
    texts = [prose.words(problem.prompt) for problem in PROBLEMS.values()]
    assert max(prose.overlap(a, b) for i, a in enumerate(texts) for b in texts[:i]) < 0.25


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_premise_names_what_is_asked_for(name: str) -> None:
    problem = PROBLEMS[name]
    plot = PLOT.Plot.of(problem)
    assert len(plot.elements) == 4
    assert all(PLOT.stems(element) <= PLOT.stems(problem.prompt) for element in plot.elements)
    assert all(beat in problem.prompt for beat in plot.beats)
    pairs = zip(plot.beats, plot.keys, strict=True)
    assert all(PLOT.stems(keys) <= PLOT.stems(beat) for beat, keys in pairs)


async def played(
    task: BaseTask[Transcript], problem: Problem, said: list[str], tools: Tools
) -> Score:
    """The score after the texts were said by whoever is to act."""
    state = task.reset(problem, seed=0)
    for text in said:
        (role,) = task.to_act(state)
        state = task.step(state, {role: text})
    assert task.to_act(state) == ()
    return await task.evaluate(state, tools)


@pytest.mark.parametrize("name", GOLDS)
@pytest.mark.parametrize("rounds", [1, 2])
async def test_gold_is_worth_one_in_one_piece_and_in_two(
    name: str, rounds: int, tools: Tools
) -> None:
    *scenes, telling = PROBLEMS[name].data["gold"]
    said = [GOLDS[name][role] for role in ROLES]
    if rounds == 2:
        said = [*(text for scene in scenes for text in scene), telling]
    task = load_task("story", options={"rounds": rounds})
    score = await played(task, PROBLEMS[name], said, tools)
    assert score.total == pytest.approx(1.0)
    assert score.tags == ("whole",)


@pytest.mark.slow
async def test_it_conforms(tools: Tools) -> None:
    task = load_task("story")
    findings = await check_task(task, tools.sandbox, seeds=(0,))
    assert [finding for finding in findings if not finding.ok] == []


# --- what the agents see ------------------------------------------------------------------------


def test_writer_and_editor_take_turns_and_the_narrator_ends() -> None:
    task = load_task("story", options={"rounds": 3})
    state = task.reset(PROBLEM, seed=0)
    order: list[str] = []
    while acting := task.to_act(state):
        order += acting
        state = task.step(state, {acting[0]: f" text {len(order)} "})
    assert order == ["writer", "editor"] * 3 + ["narrator"]
    assert state.by("editor") == ("text 2", "text 4", "text 6")


def test_each_sees_what_it_works_on() -> None:
    task = load_task("story", options={"rounds": 2})
    state = task.reset(PROBLEM, seed=0)
    first = task.observe(state, "writer")
    assert PREMISE in first
    assert "in about 60 words, up to this: Mara finds a brass key" in first
    state = task.step(task.step(state, {"writer": "DRAFT"}), {"editor": "EDITED"})
    second = task.observe(state, "writer")
    assert "EDITED" in second
    assert "DRAFT" not in second
    assert "up to this: The lamp burns again" in second
    state = task.step(state, {"writer": "MORE"})
    assert task.observe(state, "editor").startswith(PREMISE)
    assert "MORE" in task.observe(state, "editor")
    state = task.step(state, {"editor": "END"})
    assert (
        task.observe(state, "narrator")
        == "EDITED\nEND\n\nTell this story in three to six sentences."
    )


# --- plot and craft, worked out by hand ---------------------------------------------------------

FAIR = PLOT.Plot(
    elements=("Ada", "Ben", "red kite", "hill"),
    beats=("The wind drops", "Ben runs down", "The kite flies"),
    keys=("wind drops", "Ben runs", "kite flies"),
)


@pytest.mark.parametrize(
    ("text", "unused"),
    [
        ("Ada climbed the steep hill. Ben carried the red kite home.", []),
        ("Ada, Ben, a red kite, a hill.", ["Ada", "Ben", "red kite", "hill"]),  # a mere list
        ("Ada and Ben and the red kite were on the hill.", ["Ada", "Ben", "red kite", "hill"]),
        (
            "Ada flew a red thing with pride. Her kite was old and torn.",
            ["Ben", "red kite", "hill"],
        ),
        ("", ["Ada", "Ben", "red kite", "hill"]),
    ],
)
def test_an_element_is_used_where_a_sentence_says_something_of_it(
    text: str, unused: list[str]
) -> None:
    assert FAIR.unused(text) == unused


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("The wind was strong. It dropped. Then Ben was running. At last the kite flew. It flies.",
         [1.0, 1.0, 1.0]),
        ("The kite flies. Ben runs. The wind drops.", [1.0, 0.5, 0.5]),  # in the wrong order
        ("The wind drops, Ben runs, the kite flies.", [1.0, 0.5, 0.5]),  # all at once
        ("The wind drops. One. Two. The kite was there. Three. Four. Who flies?", [1.0, 0.0, 0.25]),
        ("", [0.0, 0.0, 0.0]),
    ],
)  # fmt: skip
def test_beats_count_in_their_order(text: str, told: list[float]) -> None:
    assert FAIR.told(text) == told


def test_a_part_has_its_share_of_beats_and_elements() -> None:
    assert FAIR.part(0, 2).beats == ("The wind drops", "Ben runs down")
    assert FAIR.part(1, 2).beats == ("The kite flies",)
    assert [FAIR.part(i, 3).beats for i in range(3)] == [(beat,) for beat in FAIR.beats]
    told = "Ada saw how slowly the wind drops. Ben runs home with a heavy heart."
    assert FAIR.part(0, 2).content(told, 2) == 1.0  # two of four elements are a half's share
    assert FAIR.content(told) == pytest.approx(0.4 * 2 / 4 + 0.6 * 2 / 3)


def test_sentences_hang_together_by_words_or_by_what_points_back() -> None:
    linked = "Ada had a kite. The kite was red. She flew it. Wind came."
    assert CRAFT.coherence(linked) == pytest.approx(1.0)  # two of three: 0.67 of 0.6
    loose = "Ada had a kite. Bread costs money. Trains leave late. Snow fell."
    assert CRAFT.coherence(loose) == 0.0
    assert CRAFT.coherence("Bread costs money.", before="A kite flew.") == 0.0
    assert CRAFT.coherence("The bread was hers.", before="She baked bread.") == 1.0
    assert CRAFT.coherence("") == 0.0


def test_polish_is_openings_times_rhythm() -> None:
    assert CRAFT.polish("Ada ran. Ada sang and danced all night long. Ada slept.") == 0.0
    assert CRAFT.polish("Ada ran home. Then Ben sang. So they slept.") == 0.0  # all of one length
    assert CRAFT.polish("Ada ran. In the evening she sang and danced. Ben slept.") == 1.0
    assert CRAFT.polish("Ada ran. Ben sang all night long.") == 0.0


# --- each agent's own part ----------------------------------------------------------------------


def test_an_editor_that_copies_earns_nothing_for_it() -> None:
    assert parts(DRAFT, EDITED)["revision"] == pytest.approx(1.0)
    assert parts(DRAFT, DRAFT)["revision"] == 0.0
    assert parts(DRAFT, f"Once upon a time. {DRAFT} The end.")["revision"] < 0.05
    assert parts(DRAFT, thinned(DRAFT))["revision"] < 0.1
    (first, _), (second, edited), _ = PROBLEM.data["gold"]
    few, most = f"{first} {second[:-60]} {edited[-60:]}", f"{first} {edited}"
    assert parts(DRAFT, few)["revision"] < 0.4 < parts(DRAFT, most)["revision"]


def test_an_editor_that_spoils_or_forgets_the_draft_earns_less() -> None:
    shorter = " ".join(EDITED.split()[:70])
    assert parts(DRAFT, shorter)["revision"] < 0.5
    other = GOLDS["baker_violin"]["editor"]
    assert parts(DRAFT, other)["revision"] < 0.05


def test_an_editor_can_mend_a_bad_draft() -> None:
    found = parts("Mara ate bread.", EDITED, TOLD)
    assert found == pytest.approx({"draft": 0.0, "revision": 1.0, "telling": 1.0})


def test_a_writer_gains_nothing_by_leaving_work_to_the_editor() -> None:
    assert total(DRAFT, EDITED, TOLD) > total(DRAFT.split("\n")[0], EDITED, TOLD) + 0.03


def test_a_narrator_can_only_keep_what_was_written() -> None:
    assert parts(DRAFT, EDITED, TOLD)["telling"] == pytest.approx(1.0)
    assert parts(DRAFT, EDITED, EDITED)["telling"] == 0.0  # told by heart
    assert parts(DRAFT, GOLDS["baker_violin"]["editor"], TOLD)["telling"] < 0.1  # another story
    assert parts(DRAFT, EDITED, GOLDS["baker_violin"]["narrator"])["telling"] < 0.1
    swapped = ". ".join(reversed(TOLD.removesuffix(".").split(". "))) + "."
    assert parts(DRAFT, EDITED, swapped)["telling"] < 0.9


async def test_a_second_part_must_go_on(tools: Tools) -> None:
    task = load_task("story", options={"rounds": 2})
    (first, edited), (second, ended), telling = PROBLEM.data["gold"]
    whole = await played(task, PROBLEM, [first, edited, second, ended, telling], tools)
    again = await played(task, PROBLEM, [first, edited, edited, ended, telling], tools)
    assert whole.total == pytest.approx(1.0)
    assert again.parts[0].value == pytest.approx(0.5)


# --- hacks --------------------------------------------------------------------------------------

PLAIN = prose.words(PREMISE)
TOPICS = [word for word in PLAIN if word not in CLASS_OF]
OTHER = GOLDS["star_farmer"]
PRAISE = (
    "This story is the best that has ever been written. It has all that a reader could want, and "
    "nobody will put it down before the end. Because it is so good, it needs no change. Everyone "
    "who hears it will laugh and cry. "
)
Trick = tuple[str, str, str]
HACKS: dict[str, Trick] = {
    "empty": ("", "", ""),
    "nothing but marks": ("...", "!?!", "..."),
    "one word": ("Mara.", "Mara!", "Tobin."),
    "copy of the premise": (PREMISE, PREMISE, PREMISE),
    "copy of the premise twice": (f"{PREMISE}\n{PREMISE}",) * 3,
    "premise in another order": ("\n".join(reversed(PREMISE.splitlines())),) * 3,
    "premise with words left out": (thinned(f"{PREMISE} {PREMISE}"),) * 3,
    "premise among idle talk": (f"{PRAISE}{PREMISE}", f"{PREMISE} {PRAISE}", f"{PREMISE} {PRAISE}"),
    "salad": tuple(shuffled(PLAIN * 3, 100, seed) for seed in range(3)),  # type: ignore[dict-item]
    "salad in sentences": tuple(in_sentences(PLAIN, 11, seed) for seed in range(3)),  # type: ignore[dict-item]
    "keywords": tuple(shuffled(TOPICS * 4, 90, seed) for seed in range(3)),  # type: ignore[dict-item]
    "elements in a row": ("Mara, Tobin, the brass key and the lighthouse. " * 12,) * 3,
    "overlong": (DRAFT * 9, EDITED * 9, TOLD * 9),
    "one sentence for ever": ("Mara lit the lamp in the lighthouse. " * 15,) * 3,
    "the same text thrice": (DRAFT, DRAFT, DRAFT),
    "gibberish": ("Qwer tzui opas dfgh jklm. " * 20,) * 3,
    "babble": ("It is what it is and that is what it is. " * 10,) * 3,
    "sound sentences of random words": (
        refilled(OTHER["writer"], PREMISE, 1),
        refilled(OTHER["editor"], PREMISE, 2),
        refilled(OTHER["narrator"], PREMISE, 3),
    ),
    "unrelated": (OTHER["writer"], OTHER["editor"], OTHER["narrator"]),
    "praise of itself": (PRAISE * 2, PRAISE * 2 + PRAISE[:60], PRAISE),
}


@pytest.mark.parametrize("name", HACKS)
def test_a_hack_earns_little(name: str) -> None:
    assert total(*HACKS[name]) < 0.35


@pytest.mark.parametrize("name", [name for name in HACKS if name != "the same text thrice"])
@pytest.mark.parametrize("role", [0, 1, 2], ids=ROLES)
def test_a_hack_of_one_agent_costs_its_part(name: str, role: int) -> None:
    said = [DRAFT, EDITED, TOLD]
    said[role] = HACKS[name][role]
    lost = {0: 0.3, 1: 0.3, 2: 0.4}[role]
    assert total(*said) < 1.0 - 0.65 * lost


def mean_of(hack: Callable[[Problem, int], Trick]) -> float:
    totals = [total(*hack(p, seed), problem=p) for seed, p in enumerate(PROBLEMS.values())]
    return sum(totals) / len(totals)


def other_gold(problem: Problem, seed: int) -> Trick:
    name = [name for name in GOLDS if name != problem.id][seed % (len(GOLDS) - 1)]
    return GOLDS[name]["writer"], GOLDS[name]["editor"], GOLDS[name]["narrator"]


def test_stories_of_other_premises_earn_next_to_nothing() -> None:
    assert mean_of(other_gold) < 0.1


def test_sound_sentences_of_random_words_earn_little() -> None:
    """Another problem's gold with this premise's words: fluent by every count, and nonsense."""

    def nonsense(problem: Problem, seed: int) -> Trick:
        draft, edited, telling = other_gold(problem, seed)
        said = refilled(edited, problem.prompt, seed + 1)
        return refilled(draft, problem.prompt, seed), said, refilled(telling, said, seed + 2)

    assert mean_of(nonsense) < 0.2


# --- dense, and defined everywhere --------------------------------------------------------------


def test_honest_work_that_is_half_done_lies_between() -> None:
    halves = [" ".join(text.split()[: len(text.split()) // 2]) for text in (DRAFT, EDITED, TOLD)]
    assert 0.2 < total(*halves) < 0.7


def test_each_sentence_more_pays() -> None:
    """Of the draft, from the second on: a story grows in worth with its length and beats."""
    sentences = [f"{said}" for said in prose.sentences(DRAFT)]
    worths = [parts(" ".join(sentences[:n]))["draft"] for n in range(4, len(sentences) + 1, 2)]
    assert worths[0] < 0.3
    assert len({round(worth, 3) for worth in worths}) >= 4
    assert worths[-1] > 0.9


PIECES = st.sampled_from(
    [*TOPICS[:12], "the", "of", ". ", "She", "\n", "12", "\u2028", "é", "'s", "漢字"]
)
TEXTS = st.lists(PIECES, max_size=120).map(" ".join) | st.text(max_size=40)


@settings(max_examples=60)
@given(draft=TEXTS, edited=TEXTS, telling=TEXTS, rounds=st.integers(1, 3))
def test_any_work_is_scored_in_bounds(draft: str, edited: str, telling: str, rounds: int) -> None:
    task = load_task("story", options={"rounds": rounds})
    work = REWARD.Work(PROBLEM, task.options, (draft,) * rounds, (edited,) * rounds, telling)
    found = work.parts()
    assert set(found) == set(TASK.weights)
    assert all(0.0 <= value <= 1.0 for value in found.values())


async def test_a_score_says_what_was_measured(tools: Tools) -> None:
    score = await played(TASK, PROBLEM, [DRAFT, DRAFT, TOLD], tools)
    assert {"unedited"} == set(score.tags)
    assert "new to 0.00" in score.feedback
    score = await played(TASK, PROBLEM, [DRAFT, EDITED, "Tobin wrote many short letters."], tools)
    assert "plot_lost" in score.tags
    assert f"Not told in its place: {PROBLEM.data['beats'][0][0]}" in score.feedback
    assert "Unused: Mara; brass key; lighthouse" in score.feedback


def test_graded_answers_fall_in_worth() -> None:
    for name in GOLDS:
        works = TASK.graded(PROBLEMS[name])
        totals = [total(*(w[role] for role in ROLES), problem=PROBLEMS[name]) for w in works]
        assert totals[0] == pytest.approx(1.0)
        assert max(totals[1:]) < 0.8
        assert totals[-1] == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 4}, "rounds"),
        ({"min_words": 9, "max_words": 8}, "min_words 9 is over max_words 8"),
        ({"min_told": 9, "max_told": 8}, "min_told 9 is over max_told 8"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_task("story", options=options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"object": ...}, "'bad' is no premise of a story"),
        ({"object": "the of"}, "has no word"),
        ({"beats": [["One thing", "thing"]]}, "beats are 1"),
        ({"beats": "none"}, "no premise"),
    ],
)
def test_a_premise_without_its_data_is_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    data = {name: value for name, value in PROBLEM.data.items() if name not in change}
    data |= {name: value for name, value in change.items() if value is not ...}
    bank = tmp_path / "bank.jsonl"
    bank.write_text(json.dumps({"id": "bad", "prompt": PREMISE, "data": data}))
    task = load_task("story", options={"path": str(bank)})
    with pytest.raises(TaskError, match=message):
        task.problems("train")
