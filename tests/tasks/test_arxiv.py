"""The bank is fixed, gold is worth 1, the parts are as worked out by hand, hacks earn little."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import BaseTask, Problem, Tools
from orchestry.core.config import validate
from orchestry.core.errors import ConfigError
from orchestry.core.resolve import read_config_file
from orchestry.core.types import SPLITS
from orchestry.task import prose
from orchestry.task.check import check_task
from orchestry.task.prose.words import CLASS_OF
from orchestry.task.registry import load_task
from tests.tasks.salads import in_sentences, refilled, shuffled, thinned

CONFIGS = Path(__file__).parents[2] / "configs"
TASK: BaseTask[object] = load_task("arxiv")
REWARD = import_module("orchestry_tasks.arxiv.reward")
PROBLEMS = {problem.id: problem for split in SPLITS for problem in TASK.problems(split)}
GOLDS = {name: gold for name, p in PROBLEMS.items() if (gold := TASK.gold(p))}
PINNED = {"train": "7709d3b678ba6dc3", "dev": "51dee9fd0eb397cb", "test": "07d411182c37a31e"}
ABSTRACT = PROBLEMS["tram_delays"].prompt
FIRST, SECOND = GOLDS["tram_delays"].values()


def total(first: str, second: str, abstract: str = ABSTRACT) -> float:
    pair = REWARD.text(first, abstract), REWARD.text(second, abstract)
    return TASK.score(**REWARD.parts(*pair, TASK.options)).total


def test_the_bank_is_fixed_large_and_apart() -> None:
    for split in SPLITS:
        ids = "\n".join(problem.id for problem in TASK.problems(split))
        assert hashlib.sha256(ids.encode()).hexdigest()[:16] == PINNED[split], split
    assert [len(TASK.problems(split)) for split in SPLITS] == [31, 9, 9]
    assert all(60 <= len(problem.prompt.split()) <= 120 for problem in PROBLEMS.values())
    golds = [sum(p.id in GOLDS for p in TASK.problems(split)) for split in SPLITS]
    assert golds == [11, 3, 3]
    texts = [prose.words(problem.prompt) for problem in PROBLEMS.values()]
    assert max(prose.overlap(a, b) for i, a in enumerate(texts) for b in texts[:i]) < 0.15


@pytest.mark.parametrize("name", GOLDS)
async def test_gold_is_worth_one(name: str, tools: Tools) -> None:
    state = TASK.reset(PROBLEMS[name], seed=0)
    assert TASK.to_act(state) == ("background", "method")
    state = TASK.step(state, GOLDS[name])
    assert TASK.to_act(state) == ()
    score = await TASK.evaluate(state, tools)
    assert score.total == pytest.approx(1.0)
    assert score.tags == ("sound", "whole")


@pytest.mark.slow
async def test_it_conforms(tools: Tools) -> None:
    findings = await check_task(TASK, tools.sandbox, seeds=(0, 1))
    assert [finding for finding in findings if not finding.ok] == []


# --- the parts, worked out by hand --------------------------------------------------------------


def pair_of(first: str, second: str) -> tuple[prose.Text, prose.Text]:
    return REWARD.text(first, ABSTRACT), REWARD.text(second, ABSTRACT)


@pytest.mark.parametrize(
    ("chars", "worth"),
    [
        (40, 0.0),
        (60, 0.05),
        (80, 0.1),
        (105, 0.55),
        (130, 1.0),
        (160, 1.0),
        (180, 0.55),
        (300, 0.05),
    ],
)
def test_ratio(chars: int, worth: float) -> None:
    found = prose.ratio(*pair_of("a" * 100, "b" * chars))
    assert prose.plateau(found, TASK.options.ratio) == pytest.approx(worth)


def stems(count: int) -> str:
    made = [a + b + "zk" for a in "bdfgklmnprt" for b in "aeiou"][:count]
    return " the ".join(made)


@pytest.mark.parametrize(("words", "worth"), [(5, 0.1), (6, 0.55), (7, 1.0), (13, 1.0), (15, 0.55)])
def test_distinct_words(words: int, worth: float) -> None:
    found = prose.variety(*pair_of(stems(10), stems(words)))
    assert prose.plateau(found, TASK.options.unique) == pytest.approx(worth)


def test_each_covers_its_own_half() -> None:
    """Of four sentences the first two are the first agent's: slug, lettuce, torch, night; then
    trap, beer, work, bean, grew."""
    abstract = (
        "Slugs eat lettuce. A torch helps by night. We set traps of beer. The beans grew well."
    )
    first = REWARD.text("The slugs fear a torch.", abstract)
    second = REWARD.text("The traps were full.", abstract)
    wanted = [
        len(set(prose.content(prose.words(half))))
        for half in (
            "Slugs eat lettuce. A torch helps by night.",
            "We set traps of beer. The beans grew well.",
        )
    ]
    shares = [2 / wanted[0], 1 / wanted[1]]
    assert REWARD.covered(first, second) == pytest.approx([(s - 0.1) / 0.4 for s in shares])
    assert REWARD.covered(second, first) == (0.0, 0.0)
    one = REWARD.text("Slugs.", "Slugs.")
    assert REWARD.covered(one, one) == (1.0, 1.0)


def test_style_is_two_fifths_transitions_and_three_fifths_words_in_common() -> None:
    one = "Slugs ate salad and beans near the torch of the garden."
    other = (
        "However, slugs left the lamp alone, because the lamp was hot and the garden was wet now."
    )
    # slug and garden, of these and at, salad, bean, torch, left, lamp, alon, hot, wet
    common = 2 / 11
    joined = prose.transitions(prose.words(other)) / 2
    assert prose.jaccard(*pair_of(one, other)) == pytest.approx(common)
    assert REWARD.style(*pair_of(one, other), TASK.options) == pytest.approx(
        0.4 * joined + 0.6 * common / 0.23
    )


# --- hacks --------------------------------------------------------------------------------------

SENTENCES = [f"{sentence}." for sentence in ABSTRACT.removesuffix(".").split(". ")]
PLAIN = prose.words(ABSTRACT)
TOPICS = [word for word in PLAIN if word not in CLASS_OF]
STUFFING = (
    "However, because, therefore, although, then, moreover, finally, since, for example, in short, "
    "as a result, overall, instead, while, until, next."
)
PRAISE = (
    "This paragraph is an excellent account of the background because it tells you all that there "
    "is to know about what the authors had in mind. It is clear, it is complete, and it is very "
    "well written. However, it does not say more than it should, and therefore no reader will ever "
    "be bored by it. Nobody could have done this better. "
)
IDLE = (
    "This question has been open for a long time, and many people have worked on it without an "
    "answer. The reason is simple, because nobody had the means to look at it in the right way. "
    "Much depends on the answer, however, and therefore it is worth the effort to ask again. "
)
MORE_IDLE = (
    "To find an answer the authors worked in the right way from the start. First they looked at "
    "the question, then at the reason why it has been open for so long. The means were simple and "
    "the effort was small. Because of this many people can now ask the same question again, and "
    "the answer will therefore be worth more than it was before. "
)
HACKS: dict[str, tuple[str, str]] = {
    "empty": ("", ""),
    "nothing but marks": ("...", "!?!"),
    "one word": ("Trams.", "Trams, delays, timetables."),
    "empty and gold": ("", SECOND),
    "gold and empty": (FIRST, ""),
    "copy of the abstract": (ABSTRACT, ABSTRACT),
    "copies that fit": (f"{ABSTRACT} {SENTENCES[0]}", f"{ABSTRACT} {' '.join(SENTENCES[1:4])}"),
    "copies behind a prefix": (
        f"However, {ABSTRACT}",
        f"Therefore, then, {ABSTRACT} {SENTENCES[0]}",
    ),
    "sentences in another order": (
        " ".join(reversed(SENTENCES)),
        " ".join([*SENTENCES[3:], *SENTENCES[:3], *SENTENCES[:3]]),
    ),
    "copies with words left out": (
        thinned(f"{ABSTRACT} {SENTENCES[0]} {SENTENCES[1]}"),
        thinned(f"{ABSTRACT} {ABSTRACT}"),
    ),
    "quotations among idle talk": (
        IDLE + " ".join(SENTENCES[:2]),
        MORE_IDLE + " ".join(SENTENCES[-2:]),
    ),
    "gold and a copy": (FIRST, f"{ABSTRACT} {' '.join(SENTENCES[:3])}"),
    "salad": (shuffled(PLAIN * 2, 100, 1), shuffled(PLAIN * 2, 140, 2)),
    "salad in sentences": (in_sentences(PLAIN, 12, 1), in_sentences(PLAIN, 16, 2)),
    "keywords": (shuffled(TOPICS * 3, 100, 1), shuffled(TOPICS * 4, 140, 2)),
    "keywords and transitions": (
        f"{shuffled(TOPICS * 3, 80, 1)} {STUFFING}",
        f"{shuffled(TOPICS * 3, 120, 2)} {STUFFING}",
    ),
    "overlong": (FIRST * 9, SECOND * 9),
    "overlong copy": (ABSTRACT * 9, ABSTRACT * 12),
    "one sentence for ever": (f"{SENTENCES[0]} " * 7, f"{SENTENCES[1]} " * 9),
    "the same text twice": (FIRST, FIRST),
    "one inside of the other": (FIRST, f"{FIRST} {SENTENCES[4]} {SENTENCES[5]}"),
    "swapped": (SECOND, FIRST),
    "gibberish": ("Qwer tzui opas dfgh jklm. " * 20, "Plok mijn uhbz gvtf crdx. " * 28),
    "babble": ("It is what it is and that is what it is. " * 10, "So it was what it was. " * 24),
    "sound sentences of random words": (
        refilled(GOLDS["glacier_sound"]["background"], ABSTRACT, 1),
        refilled(GOLDS["glacier_sound"]["method"], ABSTRACT, 2),
    ),
    "unrelated": tuple(GOLDS["glacier_sound"].values()),  # type: ignore[dict-item]
    "praise of itself": (PRAISE * 2, PRAISE * 2 + PRAISE[:200]),
}


@pytest.mark.parametrize("name", HACKS)
def test_a_hack_earns_little(name: str) -> None:
    assert total(*HACKS[name]) < 0.35


def mean_of(hack: Callable[[Problem, int], tuple[str, str]]) -> float:
    totals = [total(*hack(p, seed), p.prompt) for seed, p in enumerate(PROBLEMS.values())]
    return sum(totals) / len(totals)


def other_gold(problem: Problem, seed: int) -> tuple[str, str]:
    name = [name for name in GOLDS if name != problem.id][seed % (len(GOLDS) - 1)]
    return GOLDS[name]["background"], GOLDS[name]["method"]


def test_salads_of_any_abstract_earn_next_to_nothing() -> None:
    def salad(problem: Problem, seed: int) -> tuple[str, str]:
        found = prose.words(problem.prompt) * 2
        return shuffled(found, 100, seed), shuffled(found, 140, seed + 1)

    assert mean_of(salad) < 0.01


def test_expansions_of_other_abstracts_earn_next_to_nothing() -> None:
    assert mean_of(other_gold) < 0.05


def test_sound_sentences_of_random_words_earn_little() -> None:
    """Another problem's gold with this abstract's words: fluent by every count, and nonsense."""

    def nonsense(problem: Problem, seed: int) -> tuple[str, str]:
        first, second = other_gold(problem, seed)
        return refilled(first, problem.prompt, seed), refilled(second, problem.prompt, seed + 1)

    assert mean_of(nonsense) < 0.1


def test_stuffing_a_gold_with_transitions_loses() -> None:
    stuffed = f"{STUFFING} {FIRST} {STUFFING}", f"{STUFFING} {SECOND} {STUFFING}"
    assert total(*stuffed) < 0.95


# --- dense, and defined everywhere --------------------------------------------------------------


def test_every_step_from_a_copy_to_an_expansion_pays() -> None:
    """Sentence by sentence from the abstract to the gold of the second agent."""
    ours, theirs = SECOND.split(". "), (ABSTRACT.removesuffix(".") + ". " + ABSTRACT).split(". ")
    steps = [". ".join([*ours[:n], *theirs[n : len(ours)]]) for n in range(len(ours) + 1)]
    totals = [total(FIRST, said) for said in steps]
    assert totals[0] < 0.35
    assert totals[-1] == pytest.approx(1.0)
    assert len({round(number, 3) for number in totals if 0.02 < number < 0.98}) >= 4


def test_half_of_a_gold_is_worth_part_of_it() -> None:
    halves = [" ".join(text.split()[: len(text.split()) // 2]) for text in (FIRST, SECOND)]
    assert 0.1 < total(*halves) < 0.5


PIECES = st.sampled_from(
    [*TOPICS[:12], *STUFFING.split(), "the", "of", ". ", "\n", "12", "\u2028", "é", "'s", "漢字"]
)
TEXTS = st.lists(PIECES, max_size=200).map(" ".join) | st.text(max_size=40)


@settings(max_examples=100)
@given(first=TEXTS, second=TEXTS, abstract=TEXTS | st.just(ABSTRACT))
def test_any_pair_is_scored_in_bounds(first: str, second: str, abstract: str) -> None:
    pair = REWARD.text(first, abstract), REWARD.text(second, abstract)
    found = REWARD.parts(*pair, TASK.options)
    assert set(found) == set(TASK.weights)
    assert all(0.0 <= value <= 1.0 for value in found.values())
    assert REWARD.remarks(*pair)
    assert ("whole" in REWARD.tags(*pair, found)) == (total(first, second, abstract) > 1 - 1e-9)


async def test_a_score_says_what_was_measured(tools: Tools) -> None:
    async def scored(first: str, second: str) -> tuple[str, tuple[str, ...]]:
        state = TASK.reset(PROBLEMS["tram_delays"], seed=0)
        score = await TASK.evaluate(
            TASK.step(state, {"background": first, "method": second}), tools
        )
        return score.feedback, score.tags

    feedback, tags = await scored(ABSTRACT, SECOND)
    assert "The background text has" in feedback
    assert "runs copied from it 1.00" in feedback
    assert "copied" in tags
    assert await scored("", SECOND) == ("No words in: background.", ("empty",))
    assert "swapped" in (await scored(SECOND, FIRST))[1]


def test_graded_answers_fall_in_worth() -> None:
    for name in GOLDS:
        pairs = TASK.graded(PROBLEMS[name])
        totals = [total(p["background"], p["method"], PROBLEMS[name].prompt) for p in pairs]
        assert totals[0] == pytest.approx(1.0)
        assert max(totals[1:]) < 0.8
        assert totals[-1] == 0.0


def copy_of_the_hub(folder: Path, **parts: list[object]) -> Path:
    """A file for each split, shaped as the data set's are; the texts are ours."""
    for name, texts in parts.items():
        rows = [{"article_id": f"{n}", "abstract_text": text} for n, text in enumerate(texts)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return folder


def of_splits(**options: object) -> dict[str, list[str]]:
    task = load_task("arxiv", options={"bank": "arxiv", **options})
    return {split: [one.prompt for one in task.problems(split)] for split in SPLITS}


def test_published_splits_are_the_data_sets_own(tmp_path: Path) -> None:
    train = [f"We counted {n} bees." for n in range(40)]
    val = [f"We heard {n} frogs." for n in range(30)]
    folder = copy_of_the_hub(tmp_path, train=[*train], val=[*val, train[0]])
    found = of_splits(path=str(folder), splits="published", rows=35)
    assert {*found["train"], *found["dev"]} == {*train[:35]}
    assert len(found["train"]) > len(found["dev"]) > 0
    assert found["test"] == val  # and not what train has too
    mixed = of_splits(path=str(folder), rows=70)
    assert {*mixed["test"]} & {*train}
    assert sorted(text for texts in mixed.values() for text in texts) == sorted([*train, *val])


def test_published_splits_need_a_copy_that_has_them(tmp_path: Path) -> None:
    folder = copy_of_the_hub(tmp_path, train=["We counted bees."])
    with pytest.raises(ConfigError, match=r"has no split 'val', only train: name others"):
        of_splits(path=str(folder), splits="published")
    with pytest.raises(ConfigError, match=r"train\.jsonl has no split 'train', only rows without"):
        of_splits(path=str(folder / "train.jsonl"), splits="published")


def test_an_abstract_may_be_a_list_of_sentences(tmp_path: Path) -> None:
    folder = copy_of_the_hub(tmp_path, train=[["We counted bees.", "There were few."]])
    (text,) = [one for found in of_splits(path=str(folder)).values() for one in found]
    assert text == "We counted bees. There were few."


def test_the_preset_plays_the_papers_splits(tmp_path: Path) -> None:
    """Written for a GPU and a hub: what is tested here is that its keys and splits fit."""
    config = validate(read_config_file(CONFIGS / "arxiv.yaml"))
    learn = config.learn
    assert (config.backend, config.provider.model) == ("local", "Qwen/Qwen3-0.6B")
    assert (learn.group_size, learn.learning_rate, learn.top_p) == (4, 5e-6, 0.9)
    assert (config.sampling.temperature, config.sampling.max_tokens) == (0.7, 256)
    copy_of_the_hub(tmp_path, train=[f"Bees {n}." for n in range(1200)], val=["A frog."])
    found = of_splits(**{**config.options, "path": str(tmp_path)})
    assert len(found["train"]) + len(found["dev"]) == 1100
    assert config.passes == 2
    assert found["test"] == ["A frog."]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": (1.6, 1.1, 3.2, 5.0)}, "ratio must rise"),
        ({"unique": (0.5, 0.7, 0.7, 1.7)}, "unique must rise"),
        ({"min_words": 9, "max_words": 8}, "min_words 9 is over max_words 8"),
        ({"bank": "tldr"}, "bank"),
        ({"jaccard": 0}, "jaccard"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_task("arxiv", options=options)
