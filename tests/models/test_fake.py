"""The scripted provider: same seed, same answers; faults that a retry outlives."""

from __future__ import annotations

import asyncio
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from orchestry.core.config import FakeConfig
from orchestry.core.errors import ConfigError, ProviderError
from orchestry.models.fake import MEDIAN_SHARE, FakeProvider, output_prior
from tests.models.conftest import request


def fake(seed: int = 0, **fields: Any) -> FakeProvider:
    return FakeProvider(FakeConfig.model_validate(fields), seed)


def script(folder: Path, text: str) -> Path:
    path = folder / "script.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


async def test_filler_repeats_by_seed_and_differs_by_sample() -> None:
    first = [await fake().complete(request(sample_index=i)) for i in range(5)]
    again = await asyncio.gather(*(fake().complete(request(sample_index=i)) for i in range(5)))
    other = [await fake(1).complete(request(sample_index=i)) for i in range(5)]
    assert first == again
    assert first != other
    assert len({answer.text for answer in first}) > 1


async def test_filler_lengths_follow_the_prior() -> None:
    asked = [request(sample_index=i, max_tokens=1000) for i in range(400)]
    answers = [await fake().complete(one) for one in asked]
    lengths = [answer.output_tokens for answer in answers]
    mu, sigma = output_prior(1000)
    assert abs(statistics.median(lengths) / math.exp(mu) - 1) < 0.1
    assert math.exp(mu) == pytest.approx(MEDIAN_SHARE * 1000)
    below = sum(length < math.exp(mu - sigma) for length in lengths) / len(lengths)
    assert 0.1 < below < 0.22
    assert max(lengths) <= 1000
    assert all(a.stop == ("length" if a.output_tokens == 1000 else "end") for a in answers)
    assert all(len(a.text.split()) == a.output_tokens for a in answers)


async def test_a_mean_length_is_kept() -> None:
    provider = fake(output_tokens=50)
    asked = [request(sample_index=i, max_tokens=1000) for i in range(400)]
    lengths = [(await provider.complete(one)).output_tokens for one in asked]
    assert 45 < statistics.mean(lengths) < 55


async def test_input_is_a_token_for_four_bytes() -> None:
    answer = await fake().complete(request("żż"))  # 4 bytes, and 8 of the system message
    assert answer.input_tokens == 3 == fake().input_bound(request("żż"))


async def test_a_script_answers_by_agent_and_by_what_was_said(tmp_path: Path) -> None:
    lines = (
        '{"agent": "writer", "match": "hi", "text": "Hi!", "output_tokens": 7}\n\n'
        '{"agent": "*", "text": "One"}\n{"agent": "*", "text": "Two words"}\n'
    )
    provider = fake(script=script(tmp_path, lines))
    to_reviewer = [
        await provider.complete(request(agent="reviewer", sample_index=i)) for i in range(20)
    ]
    assert {answer.text for answer in to_reviewer} == {"One", "Two words"}
    to_writer = [await provider.complete(request(sample_index=i)) for i in range(30)]
    assert {(a.text, a.output_tokens) for a in to_writer} == {
        ("Hi!", 7),
        ("One", 1),
        ("Two words", 2),
    }


async def test_no_fitting_line_is_named(tmp_path: Path) -> None:
    provider = fake(script=script(tmp_path, '{"agent": "judge", "text": "x"}'))
    with pytest.raises(ProviderError, match="no line for agent 'writer'") as info:
        await provider.complete(request())
    assert not info.value.transient


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"agent": "a", "text": "x"}\n{nonsense', "line 2 is no line"),
        ('{"agent": "a"}', r"line 1 .*text"),
        ('{"agent": "a", "text": 3}', r"line 1 .*text"),
        ('{"agent": "a", "text": "x", "more": 1}', r"line 1 .*more"),
        ('{"agent": "a", "text": "x", "output_tokens": 0}', r"line 1 .*output_tokens"),
        ("[1]", "line 1"),
        ("\n", "is empty"),
    ],
)
def test_a_bad_script_names_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        fake(script=script(tmp_path, text))


def test_a_script_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"line 1 is no line of a script .*utf-8"):
        fake(script=path)


async def test_a_text_may_hold_any_sign_that_json_does(tmp_path: Path) -> None:
    provider = fake(script=script(tmp_path, '{"agent": "*", "text": "one\u2028two"}'))
    assert (await provider.complete(request())).text == "one\u2028two"


async def test_faults_are_seeded_and_pass() -> None:
    met: list[ProviderError] = []

    async def story(provider: FakeProvider, index: int) -> list[str]:
        told = []
        for _ in range(50):
            try:
                await provider.complete(request(sample_index=index))
            except ProviderError as error:
                met.append(error)
                told.append(str(error))
            else:
                return told
        raise AssertionError("no attempt succeeded")

    every = ["429", "529", "500", "timeout", "drop"]
    provider, same = (fake(fault_rate=0.5, faults=every) for _ in range(2))
    stories = [await story(provider, index) for index in range(60)]
    assert stories == [await story(same, index) for index in range(60)]
    assert 0.35 < sum(map(len, stories)) / (sum(map(len, stories)) + 60) < 0.65
    assert len({line.partition(" (")[0] for told in stories for line in told}) == 5
    for error in met:
        assert error.transient
        assert error.billed == ("429" not in str(error) and "529" not in str(error))
        assert (error.retry_after is None) == error.billed


async def test_latency_is_waited_out_through_the_given_sleep() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    steady = FakeProvider(FakeConfig(latency_s=2.0), 0, sleep=sleep)
    await steady.complete(request())
    assert slept == [2.0]
    varied = FakeProvider(FakeConfig(latency_s=2.0, latency_sigma=0.5), 0, sleep=sleep)
    for index in range(200):
        await varied.complete(request(sample_index=index))
    logs = [math.log(seconds / 2.0) for seconds in slept[1:]]
    assert abs(statistics.mean(logs)) < 0.15
    assert abs(statistics.stdev(logs) - 0.5) < 0.1


def test_a_script_without_end_is_not_read() -> None:
    with pytest.raises(ConfigError, match="the script /dev/null is not a file"):
        fake(script=Path("/dev/null"))
