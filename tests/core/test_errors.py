"""What our messages say of other people's errors."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from orchestry.core.errors import reason
from orchestry.core.types import Problem, Score


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError(), "no message"),
        (KeyError("x"), "'x'"),
        (ValueError("x" * 1000), "x" * 300),
    ],
)
def test_the_first_line_is_the_reason(error: Exception, said: str) -> None:
    assert reason(error) == said


@pytest.mark.parametrize(
    ("model", "text", "said"),
    [
        (Problem, '{"id": "a"}', "prompt: Field required"),
        (
            Score,
            '{"parts": [{"name": "q", "value": "x"}]}',
            "parts.0.value: Input should be",
        ),
        (Problem, "[1]", "Input should be an object"),
        (Problem, "{", "Invalid JSON"),
    ],
)
def test_a_validation_error_names_its_field(
    model: type[Problem] | type[Score], text: str, said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(text)
    assert reason(caught.value).startswith(said)
    assert "\n" not in reason(caught.value)
