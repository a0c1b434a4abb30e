"""Bank and conventions hold together, gold is worth 1, tricks earn less than honest first tries."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import BaseTask, Problem, Tools
from orchestry.core.errors import TaskError
from orchestry.core.types import SPLITS
from orchestry.task.check import check_task
from orchestry.task.registry import load_task

TASK: BaseTask[Any] = load_task("house_style")
BRIEF, CONVENTIONS, PROMPTS, REWARD, SENTENCES, STATED = (
    import_module(f"orchestry_tasks.house_style.{name}")
    for name in ("brief", "conventions", "prompts", "reward", "sentences", "stated")
)
PROBLEMS = {problem.id: problem for split in SPLITS for problem in TASK.problems(split)}
BRIEFS = {name: BRIEF.Brief.of(problem) for name, problem in PROBLEMS.items()}
TASK_FILE = str(CONVENTIONS.__file__)
NAMES = [one.name for one in CONVENTIONS.CONVENTIONS]
LEDGER = BRIEFS["ledger_imports"]
GOLD = LEDGER.gold
SHOWN = 1200
"""Characters of one feedback that whoever distils is shown (orchestry/backends/api/distil.py)."""
START = 0.4
"""About what an obedient team earns that knows no convention."""


def total(text: str, brief: Any = LEDGER) -> float:
    return TASK.score(**REWARD.parts(text, brief)).total


# --- the bank -----------------------------------------------------------------------------------


def test_the_splits_are_fixed() -> None:
    assert [len(TASK.problems(split)) for split in SPLITS] == [20, 12, 16]
    ids = "\n".join(problem.id for split in SPLITS for problem in TASK.problems(split))
    assert hashlib.sha256(ids.encode()).hexdigest()[:16] == "f838befda092a99e"


def test_the_test_split_has_other_texts_and_other_subjects() -> None:
    kinds, products = (
        {split: {getattr(BRIEFS[p.id], of) for p in TASK.problems(split)} for split in SPLITS}
        for of in ("kind", "product")
    )
    assert kinds["train"] == kinds["dev"] == {"changelog entry", "docstring"}
    incidents = [p for p in TASK.problems("test") if BRIEFS[p.id].kind == "incident note"]
    assert len(incidents) == 10
    assert products["dev"] <= products["train"]
    new = [p for p in TASK.problems("test") if BRIEFS[p.id].product not in products["train"]]
    assert len(new) == 14


def test_there_are_as_many_conventions_as_a_house_has_and_each_counts() -> None:
    assert 12 <= len(NAMES) == len(set(NAMES)) <= 20
    weights = [one.weight for one in CONVENTIONS.CONVENTIONS]
    assert min(weights) / sum(weights) * TASK.weights["style"] > 0.03
    assert all(one.rule.count(". ") == 0 for one in CONVENTIONS.CONVENTIONS)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gold_is_worth_one_and_the_notes_tell_every_fact_in_no_form_of_the_house(name: str) -> None:
    brief, prompt = BRIEFS[name], PROBLEMS[name].prompt
    assert total(brief.gold, brief) == pytest.approx(1.0), REWARD.feedback(brief.gold, brief)
    assert REWARD.tags(brief.gold, brief) == ["whole"]
    assert all(brief.told(prompt).values()), brief.told(prompt)
    assert brief.strange_numbers(prompt) == []
    assert len(CONVENTIONS.broken(prompt, brief)) >= 11
    assert total(prompt, brief) < START / 2


def test_the_readme_has_every_convention_and_what_it_is_worth() -> None:
    text = Path(TASK_FILE).with_name("README.md").read_text(encoding="utf-8")
    whole = sum(one.weight for one in CONVENTIONS.CONVENTIONS)
    for one in CONVENTIONS.CONVENTIONS:
        assert f"| {one.name} | {one.weight:g} | {one.rule} |\n" in text
        assert f"{100 * TASK.weights['style'] * one.weight / whole:.1f}" in text


def test_no_prompt_tells_a_convention() -> None:
    read = [spec.system_prompt + spec.goal for spec in TASK.agents]
    read += [problem.prompt for problem in PROBLEMS.values()]
    for text in read:
        assert not re.search(r"Halden|HAL|Owner:|`|LOW|MEDIUM|HIGH", text)


@pytest.mark.slow
async def test_it_conforms(tools: Tools) -> None:
    findings = await check_task(TASK, tools.sandbox, seeds=(0,))
    assert [finding for finding in findings if not finding.ok] == []


async def test_the_editors_text_counts_and_the_draft_until_there_is_one(tools: Tools) -> None:
    state = TASK.reset(PROBLEMS["ledger_imports"], 0)
    assert TASK.observe(state, "writer") == PROBLEMS["ledger_imports"].prompt
    state = TASK.step(state, {"writer": GOLD})
    assert (await TASK.evaluate(state, tools)).total == pytest.approx(1.0)
    seen = TASK.observe(state, "editor")
    assert GOLD in seen
    assert "seen:" not in seen
    state = TASK.step(state, {"editor": ""})
    assert (await TASK.evaluate(state, tools)).total == 0.0


def test_a_problem_without_its_facts_is_named() -> None:
    with pytest.raises(TaskError, match="problem 'mine' is no text of the house"):
        BRIEF.Brief.of(Problem(id="mine", prompt="", data={"kind": "docstring"}, split="dev"))


# --- conventions --------------------------------------------------------------------------------

BROKEN = {
    "severity label": GOLD.removeprefix("MEDIUM: ").replace(
        "Owner", "The severity is medium. Owner"
    ),
    "issue at the end": GOLD.replace("[HAL-1204]", "(#1204)").replace("(", "").replace(")", ""),
    "owner": GOLD.replace("Owner: storage.", "The storage team owns it."),
    "date": GOLD.replace("5 March 2026", "March 5, 2026"),
    "unit": GOLD.replace("30 s", "30 seconds"),
    "effect first": GOLD.replace("Imports of 3 files stop after 30 s. ", "").replace(
        "Halden Ledger renews", "Imports of 3 files stop after 30 s. Halden Ledger renews"
    ),
    "product": GOLD.replace("Halden Ledger", "Ledger"),
    "person": GOLD.replace("Halden", "For you, Halden"),
    "adverbs": GOLD.replace("Imports", "Sadly, imports"),
    "sentence length": GOLD.replace("since", "in the office and in the shops and at home since"),
    "code": GOLD.replace("`", ""),
    "digits": GOLD.replace("3 files", "three files"),
    "asides": GOLD.replace("30 s.", "30 s - a bug."),
    "contractions": GOLD.replace("does not", "doesn't"),
    "modals": GOLD.replace("renews", "should renew"),
}
OTHER_FORMS = (
    ("date", "5 March 2026", "2026-03-05"),
    ("date", "5 March 2026", "5 Mar 2026"),
    ("unit", "30 s", "30s"),
    ("unit", "30 s", "30 sec"),
    ("issue at the end", "[HAL-1204]", "[1204]"),
    ("asides", "Halden", "It is a bug; Halden"),
    ("asides", "Halden", "A bug \u2014 Halden"),
    ("contractions", "Halden", "That\u2019s a bug. Halden"),
    ("adverbs", "Halden", "It is very bad. Halden"),
    ("person", "Halden", "It is our bug. Halden"),
)
HARMLESS = (
    ("`lock_ttl`", "`lock_ttl()`"),
    ("Halden", "The US family gets an early reply. Halden"),
    ("Halden", "Only the nightly assembly is at risk. Halden"),
    ("Halden Ledger renews", "The cause is known. Halden Ledger renews"),
    (" Halden", "\n\nHalden"),
    ("each batch", "each new batch"),
)


@pytest.mark.parametrize("name", NAMES)
def test_each_convention_is_broken_alone_and_named(name: str) -> None:
    text = BROKEN[name]
    assert [*CONVENTIONS.broken(text, LEDGER)] == [name]
    assert f"- {name}: " in REWARD.feedback(text, LEDGER)
    assert f"broke_{name.replace(' ', '_')}" in REWARD.tags(text, LEDGER)
    assert 0.03 < 1.0 - total(text) < 0.09


@pytest.mark.parametrize(("name", "form", "other"), OTHER_FORMS)
def test_other_forms_break_it_too(name: str, form: str, other: str) -> None:
    assert [*CONVENTIONS.broken(GOLD.replace(form, other), LEDGER)] == [name]


@pytest.mark.parametrize(("form", "other"), HARMLESS)
def test_harmless_changes_break_none(form: str, other: str) -> None:
    assert total(GOLD.replace(form, other)) == pytest.approx(1.0)


def test_the_feedback_is_shown_whole_to_whoever_distils() -> None:
    for name, brief in BRIEFS.items():
        for text in (PROBLEMS[name].prompt, "nothing", "word " * 300):
            assert len(REWARD.feedback(text, brief)) <= SHOWN


# --- facts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        (GOLD.replace("5 March", "6 March"), "date"),
        (GOLD.replace("30 s", "30 min"), "amount"),
        (GOLD.replace("3 files", "4 files"), "count"),
        (GOLD.replace("MEDIUM", "HIGH"), "severity"),
        (GOLD.replace("storage", "billing"), "team"),
        (GOLD.replace("1204", "1205"), "issue"),
        (GOLD.replace("Ledger", "Courier"), "product"),
        (GOLD.replace("lock_ttl", "lock_time"), "name in the code"),
        (GOLD.replace("stop", "never stop"), "what users notice"),
        (GOLD.replace("does not renew", "renews"), "why"),
        (GOLD.replace("renews the lock with each batch", "is faster"), "what holds now"),
    ],
)
def test_a_wrong_fact_is_missing_and_costs(said: str, missing: str) -> None:
    assert [name for name, told in LEDGER.told(said).items() if not told] == [missing]
    assert missing in REWARD.feedback(said, LEDGER)
    assert total(said) < 0.8


def test_invented_numbers_cost_most_of_the_reward() -> None:
    said = GOLD.replace("Halden", "The loss is 17 percent. Halden")
    assert LEDGER.strange_numbers(said) == ["17"]
    assert total(said) < START


@pytest.mark.parametrize(
    "written", ["March 5, 2026", "5 Mar 2026", "2026-03-05", "03/05/2026", "05.03.2026"]
)
def test_a_date_is_read_in_many_forms(written: str) -> None:
    assert LEDGER.told(f"Since {written}.")["date"]


HONEST = {
    "ledger_imports": "Fixed an issue where imports of three files would stop after 30 seconds, "
    "because the importer held `lock_ttl` without renewing the lock. Ledger renews the lock with "
    "each batch as of March 5, 2026. (Severity: medium, storage team, #1204)",
    "beacon_alerts": "**Fixed:** Alerts for six pumps no longer arrive 45 seconds late. Previously "
    "`poll_order` asked the sensors in turn; since May 6, 2026, Beacon asks all sensors at once. "
    "Severity: high. Owner: network team. Issue: #1256",
    "read_batch": "Return at most 200 rows, waiting up to 5 seconds.\n\nLarger answers block the "
    "writers, so `read_batch()` stops early. Ledger has offered this function since February 16, "
    "2026.\n\nSeverity: low. Team: storage. Issue: #1221.",
    "route_parcel": "Return a route through eleven depots within 90 milliseconds.\n\nNote that "
    "`route_parcel` skips roads with a weight limit. Since January 14, 2026, Courier raises "
    "`RouteError` for an unknown depot (issue #1160, network team, medium severity).",
    "ferry_tickets": "On September 15, 2026 we resolved an incident in Ferry: within 18 minutes, "
    "the same seats were sold to 260 passengers. The root cause was that seat_lock ran out while "
    "the bank was slow. Ferry now holds a seat until the bank answers. This high-severity issue "
    "(#1621) is owned by the payments team.",
    "lantern_mail": "Reminders reached 1,400 patients five hours late (5 hours of delay) because "
    "`mail_batch` got stuck on an address with a line break. Lantern has been skipping broken "
    "addresses since 2026-09-03. Severity: Medium. Platform team. Issue 1607.",
}
"""As a strong model may write without knowing the house; written after the reward."""


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_first_try_tells_all_and_leaves_room(name: str) -> None:
    text, brief = HONEST[name], BRIEFS[name]
    assert [fact for fact, told in brief.told(text).items() if not told] == []
    assert REWARD.content(text, brief) == pytest.approx(1.0), REWARD.feedback(text, brief)
    assert 0.2 < total(text, brief) < 0.7


# --- tricks -------------------------------------------------------------------------------------


def written(brief: Any, *sentences: str) -> str:
    """Sentences between the house's label, owner and issue."""
    forms = brief.house
    said = " ".join(sentence.format_map(forms) for sentence in sentences)
    return f"{forms['severity']} {said} {forms['owner']} {forms['issue']}"


def shuffled(text: str, seed: int) -> str:
    words = text.split()
    return " ".join(random.Random(seed).sample(words, len(words)))


def keywords(brief: Any) -> list[str]:
    return [" ".join(key.split("|")[0] for key in keys).capitalize() for keys in brief.keys]


def stuffed(brief: Any) -> str:
    effect, reason, change = keywords(brief)
    return written(
        brief,
        f"{effect} {{count}} {{amount}}.",
        f"{reason} {{code}}.",
        f"{change} {{product}} {{date}}.",
    )


def mixed(brief: Any) -> str:
    """Each sentence's own words in another order."""
    said = [shuffled(sentence.removesuffix("."), 3) for sentence in brief.said]
    return written(brief, *(f"{one[:1].upper()}{one[1:]}." for one in said))


def others_gold(brief: Any) -> str:
    briefs = [*BRIEFS.values()]
    return str(briefs[briefs.index(brief) - 1].gold)


def framed(brief: Any, effect: str, reason: str, change: str) -> str:
    """The key words in sentences that fit any text: `{0}` and `{1}` are the first and last."""
    said = [
        frame.format(*(keys[place].split("|")[0] for place in (0, -1)), **brief.house)
        for frame, keys in zip((effect, reason, change), brief.keys, strict=True)
    ]
    return written(brief, *(f"{one[:1].upper()}{one[1:]}" for one in said))


def denied(brief: Any, word: str) -> str:
    """Each sentence with a word before its verb."""

    def deny(sentence: str, verbs: str) -> str:
        verb = re.compile(rf"(?<=[\w}}]) (?=(?:{verbs})[a-z]{{0,3}}\b)")
        return verb.sub(f" {word} ", sentence, count=1)

    return written(brief, *map(deny, brief.said, brief.verbs))


Say = Callable[[Any], str]
FRAMES = {
    "is": ("the {0} and the {1} are in {count} for {amount}.", "the {0} is with the {1} of {code}.",
           "{product} has the {0} for the {1} since {date}."),
    "meets": ("the {0} meets the {1} in {count} for {amount}.", "the {0} likes the {1} of {code}.",
              "{product} paints the {0} of the {1} since {date}."),
    "bare": ("{0} and {1} are in {count} for {amount}.", "{0} and {1} are with {code}.",
             "{product} is a {0} {1} since {date}."),
    "swapped": ("the {1} was {0} in {count} for {amount}.", "the {1} was {0} of {code}.",
                "{product} was {1} of {0} since {date}."),
}  # fmt: skip
DENIALS = (
    *("seldom", "rarely", "hardly", "scarcely", "barely", "never", "hardly ever", "not once"),
    *("no longer", "fails to", "failed to", "refuses to", "is unable to", "by no means", "cannot"),
    *("pretends to", "is far from", "instead of"),
)
TRICKS: dict[str, tuple[Say, float]] = {
    "empty": (lambda b: "", 0.0),
    "forms without content": (
        lambda b: written(
            b, "This is about {count} and {amount}.", "It is in {code} of {product} since {date}."
        ),
        0.0,
    ),
    "content without forms": (lambda b: " ".join(b.written(dict.fromkeys(b.house, "it"))), 0.1),
    "keywords": (stuffed, 0.01),
    "keywords in one line": (lambda b: " ".join([*b.house.values(), *keywords(b)]), 0.0),
    "the conventions recited": (
        lambda b: written(b, *(f"{one.rule}." for one in CONVENTIONS.CONVENTIONS)),
        0.05,
    ),
    "the gold of another": (others_gold, 0.0),
    "the gold thrice": (lambda b: " ".join([b.gold] * 3), 0.1),
    "the gold in a flood": (lambda b: b.gold + " The rest is as it was in the past." * 20, 0.05),
    "all words shuffled": (lambda b: shuffled(b.gold, 1), 0.1),
    "sentences shuffled": (mixed, START),
    "all denied": (
        lambda b: written(b, *(f"It is not so that {one[:1].lower()}{one[1:]}" for one in b.said)),
        0.05,
    ),
    "every number wrong": (
        lambda b: re.sub(r"\d+", lambda found: str(int(found[0]) + 1), b.gold),
        0.1,
    ),
    "every severity": (lambda b: f"LOW: MEDIUM: HIGH: {b.gold}", 0.8),
    "cause and effect in turns": (lambda b: written(b, b.said[1], b.said[0], b.said[2]), 0.95),
}


@pytest.mark.parametrize("name", TRICKS)
def test_a_trick_earns_little(name: str) -> None:
    say, most = TRICKS[name]
    found = [total(say(brief), brief) for brief in BRIEFS.values()]
    assert fmean(found) <= most


@pytest.mark.parametrize("name", FRAMES)
def test_key_words_in_a_frame_earn_little(name: str) -> None:
    found = [total(framed(brief, *FRAMES[name]), brief) for brief in BRIEFS.values()]
    assert fmean(found) < 0.2
    assert max(found) < 0.5


@pytest.mark.parametrize("word", DENIALS)
def test_denied_sentences_earn_little(word: str) -> None:
    texts = {name: denied(brief, word) for name, brief in BRIEFS.items()}
    found = [total(text, BRIEFS[name]) for name, text in texts.items()]
    assert all(text != BRIEFS[name].gold for name, text in texts.items())
    assert fmean(found) < 0.1
    assert max(found) < 0.5


@pytest.mark.parametrize("place", [0, 2])  # the other one is a denial
@pytest.mark.parametrize("word", ["seldom", "no longer"])
def test_one_denied_sentence_is_not_told(word: str, place: int) -> None:
    said = list(LEDGER.said)
    said[place] = re.sub(r"(?<= )(?=stop|renews)", f"{word} ", said[place])
    assert LEDGER.places(written(LEDGER, *said))[BRIEF.SENTENCES[place]] is None


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("Imports of 3 files stop after 30 s.", True),
        ("Three files were imported and stopped after 30 s.", True),
        ("We saw the imports stopping after 30 s.", True),
        ("Imports were stopped after 30 s.", True),
        ("The stop of the imports is after 30 s.", False),
        ("The import stop is after 30 s.", False),
        ("Imports stop hardly ever.", False),
        ("Imports of printers and a stopper.", False),
    ],
)
def test_a_verb_has_to_be_one(sentence: str, told: bool) -> None:
    place = STATED.stated(sentence, ("import", "stop"), "stop", "Imports stop.", over=False)
    assert (place is not None) == told


def test_a_repeated_or_mixed_up_text_is_no_text() -> None:
    assert SENTENCES.soundness(stuffed(LEDGER)) == 0.0
    assert all(SENTENCES.soundness(brief.gold) == 1.0 for brief in BRIEFS.values())


def test_graded_answers_fall_in_worth() -> None:
    for problem in PROBLEMS.values():
        graded = [total(one["editor"], BRIEFS[problem.id]) for one in TASK.graded(problem)]
        assert graded == sorted(graded, reverse=True)
        assert graded[0] == pytest.approx(1.0)
        assert graded[1] < 0.7


PIECES = st.sampled_from(
    ["MEDIUM:", "Imports of 3 files", "stop after", "30 s.", "5 March 2026", "99/99/9999", "`",
     "lock_ttl", "Halden", "Ledger", "[HAL-1204]", "not", "\n", "(", "Owner: storage.", "\u2019s",
     "1,2,3", "9" * 30]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=30).map(" ".join) | st.text(max_size=40)


@settings(max_examples=150)
@given(TEXTS)
def test_any_text_is_scored_in_bounds(text: str) -> None:
    found = REWARD.parts(text, LEDGER)
    assert set(found) == set(TASK.weights)
    assert all(0.0 <= value <= 1.0 for value in found.values())
    assert len(REWARD.feedback(text, LEDGER)) <= SHOWN
