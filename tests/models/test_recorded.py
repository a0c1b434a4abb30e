"""A journal that a real provider's answers were written to gives the same answers again."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestry.core.config import FakeConfig
from orchestry.core.errors import ConfigError, ProviderError, StoreError
from orchestry.core.types import Completion, Request
from orchestry.models.fake import FakeProvider
from orchestry.models.recorded import RecordedProvider
from orchestry.models.request_key import request_key
from orchestry.store.journal import Answered, Journal, Opened
from tests.models.conftest import request


def answered(key: str, completion: Completion) -> Answered:
    return Answered(
        call=1,
        key=key,
        agent="writer",
        purpose="act",
        source="provider",
        completion=completion,
        at=0.0,
    )


async def record(folder: Path, requests: list[Request]) -> list[Completion]:
    provider = FakeProvider(FakeConfig(), 0)
    journal = Journal(folder / "journal.jsonl")
    journal.append(Opened(at=0.0, provider="fake", model="fake-1"))
    answers = []
    for one in requests:
        answer = (await provider.complete(one)).model_copy(update={"usd": 0.5})
        journal.append(answered(request_key(provider, one), answer))
        answers.append(answer)
    journal.close()
    return answers


async def test_a_replay_gives_each_request_its_answer_for_free(tmp_path: Path) -> None:
    asked = [request(sample_index=index) for index in range(4)]
    answers = await record(tmp_path, asked)
    for place in (tmp_path, tmp_path / "journal.jsonl"):
        provider = RecordedProvider(place)
        assert provider.model == "fake-1"
        async with provider:
            replayed = [await provider.complete(one) for one in reversed(asked)]
        free = [answer.model_copy(update={"usd": 0.0}) for answer in reversed(answers)]
        assert replayed == free
        assert provider.input_bound(asked[0]) == answers[0].input_tokens


async def test_the_first_of_two_answers_counts(tmp_path: Path) -> None:
    (first,) = await record(tmp_path, [request()])
    journal = Journal(tmp_path / "journal.jsonl")
    later = first.model_copy(update={"text": "later"})
    journal.append(answered(request_key(FakeProvider(FakeConfig(), 0), request()), later))
    journal.close()
    assert (await RecordedProvider(tmp_path).complete(request())).text == first.text


async def test_an_unknown_request_says_how_to_match(tmp_path: Path) -> None:
    await record(tmp_path, [request()])
    provider = RecordedProvider(tmp_path)
    with pytest.raises(ProviderError, match=r"sample 9.*config.yaml gives; 1 ans") as info:
        await provider.complete(request(sample_index=9))
    for keys in ("judge.*", "credit.*", "behaviors.*"):
        assert keys in str(info.value)
    assert not info.value.transient
    assert not info.value.billed


def test_recordings_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no recording at"):
        RecordedProvider(tmp_path)
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"")
    with pytest.raises(ConfigError, match="records no run"):
        RecordedProvider(tmp_path)
    journal.write_bytes(b"nonsense\n")
    with pytest.raises(StoreError, match="line 1 is damaged"):
        RecordedProvider(tmp_path)
