"""What a candidate says for itself is read with bounds: it can't keep the host busy."""

from __future__ import annotations

import os
import signal

import pytest

from orchestry.services.sandbox.inside import tagged
from orchestry.services.sandbox.inside.server import ENDED, FULL, LATE
from orchestry.services.sandbox.leaks import Redactor
from orchestry.services.sandbox.records import record_room, verdicts
from orchestry.services.sandbox.worker import Played
from orchestry.types import CallResult, Limits

LIMITS = Limits(output_kb=64, cpu_s=1.0)
RIGHT = tagged.dumps_record({"index": 0, "verdict": "value", "value": b"7"})


def read(*bodies: bytes, calls: int = 1, end: int = ENDED, status: int = 0) -> list[CallResult]:
    said = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    return verdicts(Played(end, status, said), calls, LIMITS, Redactor(os.environ))


def test_an_honest_record() -> None:
    assert read(RIGHT) == [CallResult(verdict="value", value=7)]


def colliding(count: int) -> bytes:
    """A set of numbers that all have one hash."""
    numbers = ",".join(f'["i","{hex(n * ((1 << 61) - 1))}"]' for n in range(1, count + 1))
    return f'["s",[{numbers}]]'.encode()


@pytest.mark.parametrize("count", [17, 1000])
def test_a_set_of_many_items_of_one_hash_is_not_built(count: int) -> None:
    with pytest.raises(tagged.Untaggable, match="one hash"):
        tagged.loads(colliding(count))
    value = tagged.dumps_record({"index": 0, "verdict": "value", "value": colliding(count)})
    assert read(value)[0].why == "broke the runner's channel: too many items of one hash"
    pairs = f'["d",[{",".join(f"[{n * ((1 << 61) - 1)},0]" for n in range(1, count + 1))}]]'
    with pytest.raises(tagged.Untaggable, match="one hash"):
        tagged.loads(pairs.encode())


def test_few_items_of_one_hash_are_honest() -> None:
    assert len(tagged.loads(colliding(16))) == 16


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[[[[",
        b"[1]",
        tagged.dumps_record({"index": 1, "verdict": "value", "value": b"7"}),
        tagged.dumps_record({"index": 0, "verdict": "pass", "value": b"7"}),
        tagged.dumps_record({"index": 0, "verdict": "value"}),
        tagged.dumps_record({"index": 0, "verdict": "value", "value": b"7", "junk": [[]] * 9}),
        tagged.dumps_record({"index": 0, "verdict": "error", "why": 7}),
        tagged.dumps_record({"index": 0, "verdict": "error", "why": "", "line": 1 << 40}),
        b'{"index":0,"verdict":"value","value":{"a":7}}',
        b'{"index":0,"verdict":"value","value":' + b"[" * 2000 + b"]" * 2000 + b"}",
        b" " * record_room(LIMITS) + RIGHT,
    ],
)
def test_what_the_runner_would_not_say_is_an_error(body: bytes) -> None:
    (result,) = read(body)
    assert result.verdict == "error"
    assert "broke the runner's channel" in result.why


def test_more_records_than_calls_make_all_of_them_worthless() -> None:
    second = tagged.dumps_record({"index": 1, "verdict": "value", "value": b"7"})
    assert [result.verdict for result in read(RIGHT, second)] == ["error"]


def test_how_a_run_ended_is_the_verdict_on_the_calls_it_left_open() -> None:
    ends = [
        (LATE, 0, "timeout"),
        (FULL, 0, "output"),
        (ENDED, signal.SIGXCPU, "timeout"),
        (ENDED, signal.SIGKILL, "memory"),
        (ENDED, signal.SIGSEGV, "error"),
        (ENDED, 256, "error"),
    ]
    for end, status, verdict in ends:
        results = read(RIGHT, calls=3, end=end, status=status)
        assert [result.verdict for result in results] == ["value", verdict, verdict]
