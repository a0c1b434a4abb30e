"""What servers say of a request, wherever and in whatever words: a prompt that is too long, an
error inside an answer of status 200, an answer that the server itself could not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestry.core.errors import PromptTooLong, ProviderError
from orchestry.models.http import Endpoint, failure_within, refusal
from tests.models.conftest import ANTHROPIC_ANSWER, KEY, OPENAI_ANSWER, at, failure, request
from tests.models.loopback import events, reply, serving
from tests.models.scripted import Run, ask, kinds
from tests.models.test_anthropic import BLOCK, START, delta

HERE = Endpoint("openai", "http://127.0.0.1:1/v1", "K_VAR", "U_VAR", 1.0, KEY)


def oai(message: str, code: Any = None, type: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


TOO_LONG: list[tuple[str, int, Any]] = [
    ("openai", 400, oai("Your input exceeds the context window of this model.")),
    ("openai, code", 400, oai("Too much.", "context_length_exceeded")),
    (
        "openai, of old",
        400,
        oai(
            "This model's maximum context length is 8192 tokens. However, your messages resulted "
            "in 9001 tokens. Please reduce the length of the messages."
        ),
    ),
    ("anthropic", 400, oai("prompt is too long: 210000 tokens > 200000 maximum")),
    (
        "anthropic, both",
        400,
        oai("input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000"),
    ),
    ("anthropic, bytes", 413, oai("Request exceeds the maximum size", type="request_too_large")),
    (
        "llama.cpp",
        400,
        oai("the request exceeds the available context size", 400, "exceed_context_size_error"),
    ),
    (
        "vllm",
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested "
            "5000 tokens in the messages, Please reduce the length of the messages.",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    (
        "vllm, newer",
        400,
        oai("The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    ),
    ("tgi", 422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"}),
    (
        "tgi, inputs",
        422,
        {"error": "`inputs` must have less than 4095 tokens. Given: 5000", "error_type": "v"},
    ),
    (
        "sglang",
        400,
        oai("The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
    ),
    (
        "xai",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 140000",
        },
    ),
    ("bedrock", 400, {"message": "Input is too long for requested model."}),
    ("groq", 413, oai("Please reduce the length of the messages or completion.")),
    (
        "mistral",
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with "
            "32768 maximum context length",
            "type": "invalid_request_prompt",
            "code": "3051",
        },
    ),
    (
        "gemini",
        400,
        oai(
            "The input token count (1200000) exceeds the maximum number of tokens allowed "
            "(1048576).",
            400,
            "INVALID_ARGUMENT",
        ),
    ),
    ("gemini, in a list", 400, [{"error": {"code": 400, "message": "input token count exceeds"}}]),
    ("ollama", 400, oai("input length exceeds the context length")),
    (
        "together",
        422,
        oai("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193"),
    ),
    (
        "cohere",
        400,
        {
            "message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - "
            "received 5000."
        },
    ),
    ("fireworks", 400, oai("The prompt is too long: 9000, model maximum context length: 8191")),
    ("deepseek", 400, oai("This model's maximum context length is 65536 tokens.")),
    (
        "openrouter",
        400,
        oai("This endpoint's maximum context length is 8192 tokens. However, you requested 9000"),
    ),
    ("cerebras", 400, oai("Current length is 9000 while limit is 8192", "context_length_exceeded")),
    ("lm studio", 400, {"error": "The number of tokens to keep exceeds the context length"}),
    (
        "lm studio, newer",
        400,
        {
            "error": "Trying to keep the first 5000 tokens when context the overflows. However, "
            "the model is loaded with context length of only 4096 tokens"
        },
    ),
    ("azure", 400, oai("The prompt's length exceeds the model's context window.", 400)),
    ("nim", 422, {"detail": "Requested tokens (5000) exceed context window of 4096"}),
    ("llama-cpp-python", 400, oai("Requested tokens (5000) exceed context window of 4096", 400)),
    ("tensorrt", 400, oai("prompt length (5000) exceeds maximum input length (4096)")),
    ("hf router", 400, {"error": "Input is too long: 5000 tokens; the limit is 4096"}),
    ("tabby", 400, oai("Prompt length 5000 is greater than max_seq_len 4096")),
    (
        "tensorrt, both",
        400,
        oai("The sum of prompt length (5000), query length (0) should not exceed max_num_tokens"),
    ),
    ("mistral.rs", 422, oai("Prompt sequence length is greater than 4096")),
    (
        "mlc",
        400,
        oai("Request prompt has 5000 tokens in total, larger than the model input length limit"),
    ),
    (
        "openai, characters",
        400,
        oai("Invalid 'messages[0].content': string too long. Expected at most 1048576."),
    ),
    ("total", 400, oai("The total number of tokens (5000) is larger than the maximum (4096)")),
    ("llm-engine", 400, {"detail": "tokens in request more than max tokens allowed: 4096"}),
    ("length alone", 422, {"detail": "Input length (5000) exceeds limit"}),
    ("old vllm", 400, oai("Default max_tokens (-904) must be greater than 0, got -904")),
    ("snowflake", 400, {"message": "max tokens of 4096 exceeded"}),
    ("limit alone", 400, {"error": "Token limit exceeded: 5000 > 4096"}),
    ("gateway", 400, {"error": "Prompt too large: 9,000 tokens (limit 8,192)"}),
    ("sambanova", 400, oai("Requests with prompts longer than 8192 tokens are not supported")),
    ("history", 400, oai("The message history exceeds the context of the model")),
    ("two numbers", 400, oai("`messages` contain 9000 tokens, the maximum is 8192")),
    ("watsonx", 400, oai("number of input tokens 5000 cannot exceed the total tokens limit 4096")),
    ("its role", 400, oai("The system message and messages of role user exceed 4096 tokens")),
    ("plain text", 413, "Prompt too long for this model's context"),
    ("no body", 413, {"detail": "Payload Too Large: too many tokens in prompt"}),
]
OTHERWISE: list[tuple[int, Any]] = [
    (400, oai("max_tokens is too large: 100000. This model supports at most 16384 tokens.")),
    (400, oai("max_completion_tokens must be less than 4096")),
    (400, oai("Unsupported parameter: 'max_tokens' is not supported with this model.")),
    (400, oai("Invalid value for 'temperature'")),
    (400, oai("The image is too large: it exceeds 5 MB")),
    (429, oai("Rate limit reached: too many tokens per minute (TPM): limit 30000")),
    (429, oai("Request too large for model: limit 6000 tokens per minute, requested 9000")),
    (413, oai("Request too large for gpt-4o on tokens per min (TPM): Limit 6000, Requested 9000")),
    (401, oai("Incorrect API key")),
    (404, oai("The model does not exist")),
    (422, {"detail": [{"loc": ["body", "messages"], "msg": "field required"}]}),
    (400, oai("messages: at least one message is required")),
    (500, oai("context deadline exceeded")),
    (400, oai("Invalid 'tools[0].function.name': string too long. Expected at most 64.")),
    (400, oai("stop: too many stop sequences, at most 4 are allowed")),
    (400, oai("the stop sequence is too long")),
    (400, oai("Invalid value for 'max_tokens': must be at most 4096 (maximum tokens allowed)")),
    (400, oai("max_tokens: 9000 > 8192, the maximum allowed number of output tokens")),
    (400, oai("messages exceed the maximum count of 100")),
    (400, oai("Invalid 'messages[1].tool_calls[0].id': string too long. Expected at most 40.")),
    (400, oai("The model `x` does not exist, or you have no access to its context window")),
    (400, oai("This model's maximum completion tokens is 4096, and you requested 5000")),
    (400, oai("max_tokens exceeds the model's maximum output tokens 8192")),
    (400, oai("`max_tokens` must be greater than `thinking.budget_tokens`")),
    (400, oai("Your request would exceed your organization's rate limit of 30000 tokens")),
    (400, oai("Monthly token quota exceeded")),
    (400, oai("Prompt was flagged by the content filter: limit exceeded for category hate")),
    (400, oai("temperature in request exceeds maximum 2")),
    (400, oai("messages.0.content: at most 100 images are allowed in a request")),
    (400, oai("Invalid 'messages': array too long. Expected an array with maximum length 2048")),
    (400, oai("`n` is larger than the maximum of 8")),
    (400, oai("This model does not support more than one system message in messages")),
    (400, oai("best_of must be greater than or equal to n for prompt")),
    (400, oai("top_logprobs must be less than 20 tokens")),
    (400, oai("Invalid schema for response_format 'x': nesting exceeds the maximum depth of 5")),
    (400, oai("messages.0.content.0.text.cache_control: A maximum of 4 blocks is allowed")),
    (400, oai("Last message must have role user, messages length should be more than 0")),
    (400, oai("The prompt has no such field. `echo` is larger than 1")),
]


@pytest.mark.parametrize(("body", "status"), [(b, s) for _, s, b in TOO_LONG], ids=str)
def test_a_prompt_that_is_too_long_is_known_in_any_words(body: Any, status: int) -> None:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    assert isinstance(refusal(HERE, status, {}, data), PromptTooLong)


@pytest.mark.parametrize(("status", "body"), OTHERWISE, ids=str)
def test_other_limits_are_not_taken_for_the_prompts(status: int, body: Any) -> None:
    assert not isinstance(refusal(HERE, status, {}, json.dumps(body).encode()), PromptTooLong)


@pytest.mark.parametrize("body", [b for _, _, b in TOO_LONG if isinstance(b, dict)], ids=str)
def test_it_is_known_inside_an_answer_too(body: dict[str, Any]) -> None:
    error = body.get("error", body)
    said = {"message": error} if isinstance(error, str) else error
    assert isinstance(failure_within(HERE, {"code": 400, **said}), PromptTooLong)


# --- errors inside answers of status 200 --------------------------------------------------------

WITHIN: list[tuple[Any, bool, bool, str]] = [
    ({"error": {"code": 429, "message": "slow down"}}, True, False, "429: slow down"),
    ({"error": {"code": "rate_limit_exceeded", "message": "slow"}}, True, False, "429"),
    ({"error": {"type": "overloaded_error", "message": "busy"}}, True, False, "529"),
    ({"error": {"code": 401, "message": "no"}}, False, False, "401"),
    ({"error": {"code": 402, "message": "Insufficient credits"}}, False, False, "402"),
    ({"error": {"code": 400, "message": "bad"}}, False, True, "400"),
    ({"error": {"code": 404, "message": "no such model"}}, False, True, "404"),
    ({"error": {"code": 502, "message": "upstream"}}, True, False, "502"),
    ({"error": "the upstream broke"}, True, False, "500: the upstream broke"),
    ({"error": {"message": "?"}}, True, False, "500"),
    ({"error": True, "message": "Too many requests"}, True, False, "429: Too many requests"),
    ({"errors": [{"code": 429, "message": "slow"}]}, True, False, "429"),
    ({"object": "error", "message": "no", "code": 400}, False, True, "400: no"),
    ({"code": 503, "message": "warming up"}, True, False, "503: warming up"),
    ({"type": "error", "error": {"type": "api_error", "message": "x"}}, True, False, "500: x"),
    ({"status": 429, "message": "slow"}, True, False, "429"),
]
"""An answer; whether its call is tried again, and if not, whether others may still succeed."""


@pytest.mark.parametrize(("body", "transient", "refused", "says"), WITHIN, ids=str)
async def test_an_error_inside_an_answer_counts_by_its_code(
    vendor: str, body: dict[str, Any], transient: bool, refused: bool, says: str
) -> None:
    async with serving(reply(body)) as server, at(vendor, server.url) as provider:
        error = await failure(provider)
    assert (error.transient, error.refused) == (transient, refused)
    assert f"answered {says}" in str(error)
    assert error.billed == transient, "this host is no vendor's own"


@pytest.mark.parametrize(
    ("choice", "transient"),
    [
        ({"finish_reason": "error", "message": {"content": "Hel"}}, True),
        (
            {
                "finish_reason": "error",
                "error": {"code": 400, "message": "no"},
                "message": {"content": ""},
            },
            False,
        ),
        ({"error": {"code": 502, "message": "upstream"}, "message": {"content": "Hel"}}, True),
    ],
    ids=str,
)
async def test_a_choice_that_failed_is_no_answer(choice: dict[str, Any], transient: bool) -> None:
    raw = reply({**OPENAI_ANSWER, "choices": [choice]})
    async with serving(raw) as server, at("openai", server.url) as provider:
        error = await failure(provider)
    assert error.transient == transient
    assert error.billed, "the vendor drew it"


def minimax(code: int, **fields: Any) -> dict[str, Any]:
    """MiniMax's answer of status 200 to a call that failed."""
    usage = {"total_tokens": 0, "prompt_tokens": 0, "completion_tokens": 0}
    base = {"status_code": code, "status_msg": "the cause"}
    return {"id": "1", "choices": None, "usage": usage, "base_resp": base, **fields}


@pytest.mark.parametrize(
    ("code", "status", "transient", "refused"),
    [
        (1002, 429, True, False),
        (1039, 429, True, False),
        (2056, 429, True, False),
        (1004, 401, False, False),
        (2049, 401, False, False),
        (1008, 402, False, False),
        (1026, 400, False, True),
        (2013, 400, False, True),
        (1000, 500, True, False),
        (9999, 500, True, False),
    ],
)
async def test_minimax_tells_its_failures_in_base_resp(
    code: int, status: int, transient: bool, refused: bool
) -> None:
    async with serving(reply(minimax(code))) as server, at("openai", server.url) as provider:
        error = await failure(provider)
    assert f"answered {status}: the cause ({code})" in str(error)
    assert (error.transient, error.refused) == (transient, refused)
    assert error.billed == transient, "this host is no vendor's own"


async def test_what_minimax_drew_and_kept_back_is_billed() -> None:
    raw = reply(minimax(1027, output_sensitive=True))
    async with serving(raw) as server, at("openai", server.url) as provider:
        error = await failure(provider)
    assert (error.refused, error.billed) == (True, True)
    long = minimax(2013)["base_resp"] | {"status_msg": "context window exceeds limit"}
    async with (
        serving(reply(minimax(0, base_resp=long))) as server,
        at("openai", server.url) as provider,
    ):
        assert isinstance(await failure(provider), PromptTooLong)
    fine = {**OPENAI_ANSWER, "base_resp": {"status_code": 0, "status_msg": ""}}
    async with serving(reply(fine)) as server, at("openai", server.url) as provider:
        assert (await provider.complete(request())).text == "Hello"


@pytest.mark.parametrize("code", [400, 401, 403, 404, 429])
async def test_what_was_drawn_before_an_error_is_billed(vendor: str, code: int) -> None:
    counts = (OPENAI_ANSWER if vendor == "openai" else ANTHROPIC_ANSWER)["usage"]
    raw = reply({"error": {"code": code, "message": "no"}, "usage": counts})
    async with serving(raw) as server, at(vendor, server.url) as provider:
        assert (await failure(provider)).billed


@pytest.mark.parametrize("begun", [[], [START], [START, BLOCK, delta("Hel")]], ids=len)
@pytest.mark.parametrize(
    ("kind", "says", "transient"),
    [
        ("overloaded_error", "529", True),
        ("rate_limit_error", "429", True),
        ("api_error", "500", True),
        ("invalid_request_error", "400", False),
        ("authentication_error", "401", False),
    ],
)
async def test_an_error_in_a_stream_counts_by_its_type_and_what_had_begun_is_billed(
    kind: str, says: str, transient: bool, begun: list[dict[str, Any]]
) -> None:
    failed = {"type": "error", "error": {"type": kind, "message": f"says {KEY}"}}
    async with serving(events(*begun, failed)) as server, at("anthropic", server.url) as provider:
        error = await failure(provider, started=lambda: None)
    assert f"answered {says}" in str(error)
    assert error.transient == transient
    assert error.billed == (transient or bool(begun))


async def test_a_server_that_knows_no_streams_answers_at_once() -> None:
    raw = reply(ANTHROPIC_ANSWER)
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        answer = await provider.complete(request(), started=lambda: None)
    assert answer.text == "Hello"
    raw = reply({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}})
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        error = await failure(provider, started=lambda: None)
    assert "answered 429" in str(error)


# --- draws that the server could not read -------------------------------------------------------

BAD: list[tuple[int, Any]] = [
    (400, oai("Failed to call a function. See 'failed_generation'.", "tool_use_failed")),
    (400, {"error": {"message": "x", "code": "json_validate_failed", "failed_generation": "{"}}),
    (400, oai("Failed to parse tool call arguments as JSON")),
    (422, oai("tool call validation failed: parameters did not match schema")),
    (500, oai("Failed to parse tool call: unexpected end")),
    (200, {"choices": [{"finish_reason": "MALFORMED_FUNCTION_CALL", "message": {}}]}),
    (
        200,
        {"error": oai("Failed to call a function.", "tool_use_failed")["error"] | {"status": 400}},
    ),
]


@pytest.mark.parametrize(("status", "body"), BAD, ids=str)
async def test_what_a_server_could_not_read_is_drawn_again_with_another_seed(
    status: int, body: Any, tmp_path: Path
) -> None:
    """A server that honours seeds would draw the same once more."""
    run = Run(tmp_path)

    def answer(number: int) -> bytes:
        return reply(body, status) if number < 2 else reply(OPENAI_ANSWER)

    async with serving(answer) as server, at("openai", server.url) as provider:
        async with run.open(provider) as gateway:
            answered = await gateway.answer(ask())
        async with run.open(provider) as gateway:  # a later process asks nothing again
            assert await gateway.answer(ask()) == answered
    assert answered.text == "Hello"
    seeds = [sent["seed"] for sent in server.bodies]
    assert len(set(seeds)) == len(seeds) == 3
    assert kinds(run).count("lost") == 2, "a vendor bills what it drew"


async def test_a_server_that_can_never_read_its_model_ends_the_sample_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, retry={"attempts": 3, "billed_attempts": 3, "base_s": 0.0})
    async with (
        serving(reply(BAD[0][1], 400)) as server,
        at("openai", server.url) as provider,
        run.open(provider) as gateway,
    ):
        answer = await gateway.answer(ask())
    assert "could not read what its model wrote" in answer.failed
    assert len(server.bodies) == 3


def test_a_bad_draw_is_no_refusal() -> None:
    error = refusal(HERE, 400, {}, json.dumps(BAD[0][1]).encode())
    assert isinstance(error, ProviderError)
    assert (error.transient, error.billed, error.bad_draw) == (True, True, True)
