"""Structured questions: fences, clips, room for an answer, and one repair in a second batch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.config import MAX_TOKENS
from orchestry.core.types import Completion, Message, Request
from orchestry.judge.structured import (
    CUT,
    Malformed,
    Reply,
    ask,
    closed,
    ends,
    fence_code,
    head,
    marked_off,
    outcome,
    parsed,
    room,
)
from tests.toys import Scripted


def request(name: str) -> Request:
    asked = (Message(role="user", content=name),)
    return Request(agent="a", model="m", messages=asked, max_tokens=9, temperature=0.5, seed=4)


def number(answer: Completion) -> int:
    if not answer.text.strip().isdigit():
        raise Malformed("it is no number")
    return int(answer.text)


async def replies(policy: Scripted, *names: str) -> list[Reply[int]]:
    asked = [request(name) for name in names]
    return await ask(policy, asked, number, noun="number", clip=lambda text: head(text, 8))


def says(first: dict[str, str], again: dict[str, str]) -> Scripted:
    """Answers by question, and by question when it is repaired."""

    def answer(asked: Request) -> str:
        return (first if len(asked.messages) == 1 else again)[asked.messages[0].content]

    return Scripted(answer)


async def test_all_questions_are_one_batch_and_all_repairs_another() -> None:
    policy = says({"a": "1", "b": "?", "c": "3", "d": "!"}, {"b": "2", "d": "still no"})
    found = await replies(policy, "a", "b", "c", "d")
    assert found == [Reply(1, True), Reply(2, False), Reply(3, True), Reply(None, False)]
    assert [len(batch) for batch in policy.batches] == [4, 2]


async def test_what_can_be_read_is_not_asked_again() -> None:
    policy = says({"a": "0"}, {})
    assert await replies(policy, "a") == [Reply(0, True)]
    assert policy.calls == 1


@pytest.mark.parametrize(
    ("said", "shown"),
    [(" {oops ", "{oops"), ("\n", "(nothing)"), ("x" * 9, "x" * 8 + CUT)],
    ids=["stripped", "empty", "clipped"],
)
async def test_a_repair_shows_the_faulty_answer_and_its_fault(said: str, shown: str) -> None:
    policy = says({"a": said}, {"a": "7"})
    await replies(policy, "a")
    (first,), (again,) = policy.batches
    assert again.messages[:-2] == first.messages
    assert [message.role for message in again.messages[-2:]] == ["assistant", "user"]
    assert again.messages[-2].content == shown
    assert "no valid number: it is no number. Answer once more" in again.messages[-1].content
    assert again.seed != first.seed
    kept = {"messages": first.messages, "seed": first.seed}
    assert again.model_copy(update=kept) == first


class TooLong(Scripted):
    """Refuses questions that name it."""

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        rows = await super().sample(requests, n)
        return [
            [c.model_copy(update={"stop": "too_long" if c.text == "?" else "end"}) for c in row]
            for row in rows
        ]


async def test_a_prompt_that_was_too_long_is_not_made_longer() -> None:
    policy = TooLong(lambda asked: {"a": "?", "b": "!"}[asked.messages[0].content])
    assert await replies(policy, "a", "b") == [Reply(None, False), Reply(None, False)]
    assert [[r.messages[0].content for r in batch] for batch in policy.batches] == [
        ["a", "b"],
        ["b"],
    ]


def test_an_outcome_tells_what_was_repaired_and_what_was_lost() -> None:
    good, mended = Reply(1, True), Reply(1, False)
    lost: Reply[int] = Reply(None, False)
    assert outcome([good, good]) == "rated"
    assert outcome([good, mended]) == outcome([good, lost]) == outcome([mended]) == "repaired"
    assert outcome([lost, lost]) == "malformed"


def test_the_code_differs_between_questions() -> None:
    assert len({fence_code(seed) for seed in range(500)}) == 500
    assert re.fullmatch(r"[0-9a-f]{12}", fence_code(0))


def test_a_fence_names_its_material_at_both_ends() -> None:
    assert marked_off("move", "x\ny", "c0de") == "[c0de begin move]\nx\ny\n[c0de end move]"


@given(st.text(max_size=40), st.integers(0, 40))
def test_clips_keep_short_texts_and_mark_long_ones(text: str, most: int) -> None:
    if len(text) <= most:
        assert head(text, most) == ends(text, most) == text
    else:
        assert head(text, most) == text[:most] + CUT


def test_the_ends_of_a_long_text_are_kept() -> None:
    assert ends("abcdefgh", 4) == "ab\n[cut]\ngh"


def test_a_closed_object_requires_all_it_names() -> None:
    found = closed({"a": {"type": "string"}, "b": {"type": "integer"}})
    assert found["required"] == ["a", "b"] == list(found["properties"])
    assert found["additionalProperties"] is False


@given(st.integers(1, MAX_TOKENS), st.integers(1, 10**6), st.integers(1, 400))
def test_room_grows_with_the_parts_within_bounds(least: int, parts: int, each: int) -> None:
    found = room(least, parts, each)
    assert least <= found <= MAX_TOKENS
    assert found == MAX_TOKENS or found > parts * each
    assert found <= room(least, parts + 1, each)


# --- one JSON object, whatever surrounds it ------------------------------------------------------

_WORDS = st.text(alphabet="abz {}[]\"':,.!\n\u2028`", max_size=40)
_WRAPPED = st.sampled_from(
    [
        "{one}",
        "```json\n{one}\n```",
        "```\n{one}\n``` That is all.",
        "<think>Maybe {other}?</think>\n{one}",
        "Maybe {other}?</think>{one}",
        "Here is the verdict:\n{one}\nI hope that it helps.",
        "\ufeff {one}",
        "{one}\n\n{one}",
        "{{}} {one}",
        "{one}<think>or {other}",
        "<thinking>Maybe {other}?</thinking>\n{one}",
        "<thought>Maybe {other}?</thought>\n{one}",
        "[{one}]",
    ]
)


def graded(found: Mapping[str, Any]) -> int:
    if set(found) != {"grade", "why"}:
        raise Malformed("it lacks grade")
    if type(found["grade"]) is not int:
        raise Malformed("grade is no whole number")
    return int(found["grade"])


def written(grade: float, why: str) -> str:
    return json.dumps({"grade": grade, "why": why})


@given(st.integers(0, 10), st.sampled_from([int, float]), _WORDS, _WRAPPED)
def test_the_one_object_is_read_whatever_surrounds_it(
    grade: int, kind: type[float], why: str, frame: str
) -> None:
    text = frame.format(one=written(kind(grade), why), other=written(grade + 1, why))
    assert parsed(text, graded) == grade


def test_the_text_of_an_object_in_a_json_string_is_read() -> None:
    assert parsed(json.dumps(written(7, "so")), graded) == 7


@given(st.integers(0, 10), st.integers(0, 10), _WORDS)
def test_of_two_that_differ_none_is_taken(first: int, second: int, why: str) -> None:
    text = f"It says {written(first, why)}, I say {written(second, why)}"
    if first == second:
        assert parsed(text, graded) == first
    else:
        with pytest.raises(Malformed, match="several JSON objects that differ"):
            parsed(text, graded)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("seven", "it is not one JSON object"),
        (written(7.5, ""), "grade is no whole number"),
        ('{"grade": 7, "why": "cut', "it is not one JSON object"),
        ('{"grade": 7, "grade": 8, "why": ""}', "it names a key twice"),
        (f"<think>{written(7, '')}", "it is not one JSON object"),
        ('{"a":' * 100_000, "it is not one JSON object"),
    ],
)
def test_what_is_no_such_object_is_malformed(text: str, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        parsed(text, graded)
