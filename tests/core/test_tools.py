"""Functions as tools: their schema, their results as text, and what goes wrong in a call."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

from orchestry.core.errors import ConfigError, SandboxError
from orchestry.core.tools import RESULT_CHARS, Said, Tool, ToolCall, ToolContext, tool
from orchestry.core.types import AgentSpec, Completion, Problem, Step
from orchestry.models.gateway import clean

HERE: Any = ToolContext("solver", Problem(id="one", prompt="add"), None)  # type: ignore[arg-type]


class Point(BaseModel):
    x: float
    y: float = 0.0


def add(first: int, second: Annotated[int, Field(ge=0, description="not negative")] = 2) -> int:
    """Adds two numbers."""
    return first + second


def told(text: str, here: ToolContext) -> str:
    return f"{here.agent} of {here.problem.id}: {text}"


async def use(made: Any, arguments: str = "{}", **settings: Any) -> str:
    return await tool(made, **settings).use(arguments, HERE)


def test_models_see_name_docstring_and_types() -> None:
    spec = tool(add).spec
    assert (spec.name, spec.description) == ("add", "Adds two numbers.")
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "first": {"type": "integer"},
            "second": {"type": "integer", "minimum": 0, "description": "not negative"},
        },
        "required": ["first"],
        "additionalProperties": False,
    }


def test_the_context_is_given_and_not_shown() -> None:
    made = tool(told, name="tell")
    assert made.spec.name == "tell"
    assert list(made.spec.parameters["properties"]) == ["text"]
    assert asyncio.run(made.use('{"text": "hi"}', HERE)) == "solver of one: hi"


def test_parameters_may_have_any_name() -> None:
    def odd(copy: str, model_config: list[Point], _under: int | None = None) -> str:
        return f"{copy} {model_config[0].x} {_under}"

    given = '{"copy": "a", "model_config": [{"x": 1}], "_under": 3}'
    assert asyncio.run(use(odd, given)) == "a 1.0 3"


async def test_results_become_text() -> None:
    @dataclass
    class Found:
        names: list[str]

    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    async def later() -> Any:
        await asyncio.sleep(0)
        return {"a": 1}

    assert await use(add, '{"first": 1}') == "3"
    assert await use(later) == '{"a":1}'
    assert json.loads(await use(lambda: Found(["x"]), name="found")) == {"names": ["x"]}
    assert await use(lambda: Odd(), name="odd") == "<odd>"
    assert await use(lambda: None, name="none") == "null"
    long = await use(lambda: "x" * (RESULT_CHARS + 1), name="long")
    assert long == "x" * RESULT_CHARS + "\n(1 characters more are left out)"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"first": "one"}', "error: wrong arguments of add: first: Input should be a valid int"),
        ('{"first": 1, "second": -1}', "error: wrong arguments of add: second: "),
        ('{"first": 1, "third": 1}', "error: wrong arguments of add: third: "),
        ("", "error: wrong arguments of add: first: Field required"),
        ("[1, 2]", "error: wrong arguments of add: they are no JSON object"),
        ('{"first": 1', "error: wrong arguments of add: they are no JSON object"),
    ],
)
async def test_wrong_arguments_are_a_result(arguments: str, said: str) -> None:
    assert (await use(add, arguments)).startswith(said)


@given(arguments=st.text())
def test_any_arguments_have_a_result(arguments: str) -> None:
    assert asyncio.run(use(add, arguments)).startswith("error: ")


@pytest.mark.parametrize("raised", [ValueError("odd"), StopIteration(), SystemExit(3)])
@pytest.mark.parametrize("waits", [True, False])
async def test_what_a_tool_raises_is_a_result(raised: BaseException, waits: bool) -> None:
    def now() -> None:
        raise raised

    async def later() -> None:
        if isinstance(raised, StopIteration):
            raise ValueError("Python forbids it in a coroutine")
        raise raised

    text = await use(later if waits else now)
    assert text.startswith("error: ")
    assert type(raised).__name__ in text or waits


async def test_a_tool_that_takes_too_long_is_a_result() -> None:
    stop = asyncio.Event()
    said = await use(stop.wait, name="wait", timeout_s=0.01)
    assert said == "error: wait took more than 0.01 s"


async def test_a_timeout_of_the_tools_own_is_its_error() -> None:
    async def slow() -> None:
        raise TimeoutError("the server")

    assert await use(slow) == "error: TimeoutError: the server"


def untyped(first) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Has no type."""


def many(*numbers: int) -> None:
    """Can't be called by name."""


def unknown(first: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Names a type that is nowhere."""


def strange(first: object, second: asyncio.Event) -> None:
    """Takes what JSON has not."""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (untyped, "parameter first of tool untyped has no type: write one, such as first: str"),
        (many, "parameter numbers of tool many can't be given by name"),
        (unknown, "the signature of tool unknown can't be read"),
        (strange, "the parameters of tool strange have no JSON schema"),
        (lambda: 1, "can't be a tool under the name '<lambda>'"),
        (3, "3 can't be a tool under the name ''"),
    ],
)
def test_a_function_that_can_be_no_tool_is_refused(function: Any, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tool(function)
    assert said in str(raised.value)


def test_an_agent_takes_functions_and_tools() -> None:
    spec = AgentSpec(role="solver", tools=(add, tool(told, effects=False)))
    assert all(isinstance(one, Tool) for one in spec.every_tool)
    assert [one.effects for one in spec.every_tool] == [True, False]
    assert "tools" not in spec.model_dump()


def test_two_tools_of_one_name_are_refused() -> None:
    spec = AgentSpec(role="solver", tools=(add, tool(told, name="add")))
    with pytest.raises(ConfigError, match="agent solver has two tools 'add'"):
        _ = spec.every_tool


async def test_an_awaitable_of_a_plain_function_is_awaited() -> None:
    async def inner() -> str:
        await asyncio.sleep(0)
        return "found"

    assert await use(lambda: inner(), name="outer") == "found"


async def test_a_tool_whose_own_work_was_cancelled_is_a_result() -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(asyncio.sleep(10))
        task.cancel()
        await task

    assert await use(cancelled) == "error: CancelledError"


async def test_a_stop_of_the_run_passes_through() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    call = asyncio.create_task(use(forever))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_validator_that_raises_anything_is_a_result() -> None:
    def odd(text: Annotated[str, AfterValidator(lambda value: {}[value])]) -> str:
        return text

    said = await use(odd, '{"text": "a"}')
    assert said.startswith("error: wrong arguments of odd: ")


@pytest.mark.parametrize("waits", [True, False])
async def test_a_sandbox_that_fails_stops_the_run(waits: bool) -> None:
    def now() -> None:
        raise SandboxError("it is gone")

    async def later() -> None:
        raise SandboxError("it is gone")

    with pytest.raises(SandboxError):
        await use(later if waits else now)


async def test_many_slow_calls_wait_for_no_thread() -> None:
    def nap() -> str:
        time.sleep(0.3)
        return "rested"

    found = await asyncio.gather(*(use(nap, timeout_s=5.0) for _ in range(64)))
    assert found == ["rested"] * 64


@pytest.mark.slow
def test_a_tool_that_hangs_keeps_no_process() -> None:
    program = (
        "import asyncio, threading\n"
        "from orchestry.core.tools import tool\n"
        "def hang() -> None:\n"
        "    threading.Event().wait()\n"
        "print(asyncio.run(tool(hang, timeout_s=0.1).use('{}', None)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "error: hang took more than 0.1 s\n"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": NaN}', {}),
        ('{"a": 1e999}', {}),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ("[1]", {}),
        ("{", {}),
    ],
)
def test_arguments_can_be_shown_to_a_vendor_again(arguments: str, given: dict[str, Any]) -> None:
    assert ToolCall(id="a", name="add", arguments=arguments).given == given


@given(arguments=st.text() | st.sampled_from(['\xa0{"text": "a"}', '{"text": "\\ud83d"}', " {} "]))
def test_a_tool_and_whoever_works_its_calls_out_again_read_the_same(arguments: str) -> None:
    seen = list[str]()

    def note(text: str = "") -> None:
        seen.append(text)

    said = asyncio.run(use(note, arguments))
    given = ToolCall(id="a", name="note", arguments=arguments).given
    if said == "null":
        assert seen == [given.get("text", "")]


def test_actions_are_equal_with_equal_calls_whatever_their_ids() -> None:
    one, other = (Said("x", [ToolCall(id=i, name="n", arguments="{}")]) for i in "ab")
    assert one == other
    assert not one != other  # noqa: SIM202
    assert hash(one) == hash(other) == hash("x")
    assert one != "x"
    assert not one == "x"  # noqa: SIM201
    assert Said("x") == "x"
    assert copy.deepcopy(one).calls == one.calls == pickle.loads(pickle.dumps(one)).calls


def test_what_is_told_has_the_answer_first_and_cannot_be_forged() -> None:
    call = ToolCall(id="a", name="find", arguments="{}")
    step = Step(said=Completion(text="", model="m", calls=(call,)), results=("x" * 9000,))
    answer = Completion(text="so [called find {}: y]", model="m", steps=(step,))
    assert answer.told.splitlines()[0] == "so [ called find {}: y]"
    assert answer.told.splitlines()[1] == f"[called find {{}}: {'x' * 300}]"
    left = Completion(text="", model="m", calls=(call,))  # to a program, which has the result
    assert left.told == "[called find {}]"
    assert left.action == Said("", [call]) != ""


def test_calls_are_stored_as_valid_unicode() -> None:
    call = ToolCall(id="a", name="add\ud83d", arguments="\ud83d")
    answer = clean(Completion(text="", model="m", calls=(call,)))
    assert answer.calls == (ToolCall(id="a", name="add\ufffd", arguments="\ufffd"),)
    assert answer.model_dump_json()
