"""What a candidate says for itself is read with bounds: it can't keep the host busy."""

from __future__ import annotations

import json
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.secrets import Redactor
from orchestry.core.types import CallResult, Limits
from orchestry.sandbox.inside import tagged
from orchestry.sandbox.inside.server import ENDED, FULL, LATE
from orchestry.sandbox.results import run_room, verdicts
from orchestry.sandbox.worker import Ended

LIMITS = Limits(output_kb=64, cpu_s=1.0)
RIGHT = tagged.dumps_record({"index": 0, "verdict": "value", "value": b"7"})


def read(*bodies: bytes, calls: int = 1, end: int = ENDED, status: int = 0) -> list[CallResult]:
    said = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    return verdicts(Ended(end, status, said), calls, LIMITS, Redactor(os.environ))


def test_an_honest_record() -> None:
    assert read(RIGHT) == [CallResult(verdict="value", value=7)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
)
CUT = st.sampled_from([b"", b" ", b"}", b',"why":"x"', b',"value":8', b'}{"index":0', b"\xff"])


@given(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=6), CUT)
def test_the_most_frequent_record_is_read_as_any_other(raw: bytes, more: bytes) -> None:
    """It is told by its first bytes; with a blank behind the brace it is not."""
    record = tagged.PLAIN % (0, raw + more)
    assert repr(read(record)) == repr(read(b"{ " + record[1:]))


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
        b" " * run_room(1, LIMITS) + RIGHT,
    ],
)
def test_what_the_runner_would_not_say_is_an_error(body: bytes) -> None:
    (result,) = read(body)
    assert result.verdict == "error"
    assert "broke the runner's channel" in result.why


def test_more_records_than_calls_make_all_of_them_worthless() -> None:
    second = tagged.dumps_record({"index": 1, "verdict": "value", "value": b"7"})
    assert [result.verdict for result in read(RIGHT, second)] == ["error"]


@given(st.lists(st.binary(max_size=12) | st.sampled_from([RIGHT, b'{"index":'])), st.integers(0, 3))
def test_whatever_is_said_there_is_one_result_a_call(bodies: list[bytes], calls: int) -> None:
    assert len(read(*bodies, calls=calls)) == calls


def test_records_beyond_what_a_run_may_say_are_not_read() -> None:
    """256 KiB of small lists a call: that many values were built, a second of the host's time."""
    value = b'["l",[' + b",".join([b'["l",[]]'] * 7000) + b"]]"
    bodies = [b'{"index":%d,"verdict":"value","value":%b}' % (n, value) for n in range(16)]
    results = read(*bodies, calls=16)
    assert {(result.verdict, result.why) for result in results} == {
        ("error", "broke the runner's channel: more bytes than a run may say")
    }
    assert read(bodies[0], calls=16)[0].value == [[]] * 7000


@pytest.mark.parametrize(
    "value", ["a sentinel-1234", {"sentinel-1234": 1}, [("sentinel-1234",)], b"sentinel-1234\0"]
)
@pytest.mark.parametrize("escaped", [False, True])
def test_no_spelling_of_a_value_hides_a_secret(
    monkeypatch: pytest.MonkeyPatch, value: object, escaped: bool
) -> None:
    monkeypatch.setenv("VENDOR_API_KEY", "sentinel-1234")
    raw = tagged.dumps(value)
    if escaped:
        raw = raw.replace(b"sentinel", b"\\u0073entinel").replace(b'"b"', b'"\\u0062"')
    record = b'{"index":0,"verdict":"value","value":' + raw + b"}"
    (result,) = read(record)
    assert result.verdict == "value"
    assert "[secret]" in str(result.value)
    assert "sentinel" not in str(result.value)


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
