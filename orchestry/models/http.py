"""Shared by the SDK providers: sends one request, and explains failures.

The SDKs build, sign and send the request. Answers are read here from bytes, because the SDKs accept
any JSON while a bill needs every number checked. The SDKs' errors contain the request with its key,
so ours are raised outside the `except`, without context.

Vendors enforce a subset of JSON schema and answer 400 to the rest. A refused keyword moves into its
schema's description: the model reads it there, and the reader checks it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import Any, Self
from urllib.parse import parse_qsl, urljoin, urlsplit

from orchestry.core.distribution import install
from orchestry.core.errors import PromptTooLong, ProviderError
from orchestry.core.extras import as_dict
from orchestry.core.secrets import bare_address, keys_in_query, without_key, without_keys
from orchestry.core.types import Request, utf8
from orchestry.models.dialect import Dialect, Mend, ask

CONNECT_S = 10.0
"""Seconds to wait for a connection; waiting is not billed."""
_LONGEST_DETAIL = 300
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_BUSY = {409, 425, 429, 503, 529}
"""Statuses of a server that is too busy. A vendor's own host answers so before it generates a
token; a gateway may do so after the vendor behind it has generated, and billed, the answer."""
_UNBILLED = {
    "api.anthropic.com": _BUSY,
    "api.openai.com": _BUSY,
    "api.x.ai": _BUSY,
    "api.deepseek.com": _BUSY,
    "api.groq.com": _BUSY,
    "api.mistral.ai": _BUSY,
    "generativelanguage.googleapis.com": _BUSY | {400, 500},
}
"""Statuses for which a vendor charges nothing, by its own host. Gemini: "If your request fails
with a 400 or 500 error, you won't be charged for the tokens used"
(https://ai.google.dev/gemini-api/docs/billing). Anthropic and OpenAI say nothing of the kind."""
_TOO_LONG = {
    "exceed_context_size_error",
    "request_too_large",
    "context_length_exceeded",
    "tokens_limit_reached",
    "model_max_prompt_tokens_exceeded",
}


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_SENTENCE = re.compile(r"(?<=[.!?;])\s|\n")
_SAYS_PROMPT = _any_of(
    r"\b(?:prompts?|inputs?|context|messages?|conversation|sequence|tokens?)\b",
    r"\b(?:input|context)_|n_ctx|max_seq_len|too large for \S+ model",
    r"request (?:body|payload)|request exceeds the maximum size",
    r"\bgot -\d",  # what is left for an answer
)
_SAYS_TOO_LONG = _any_of(
    r"too (?:long|large|many|big)|exceed|overflow|not fit|over the (?:model|max|limit)",
    r"reduce the length|(?:longer|greater|larger|more|less) than|(?:length|maximum) should be",
    r"context[ _-](?:length|window|size|limit)|maximum (?:context|input|prompt|model) length",
    r"length limit|(?:at most|only|up to|<=|>|limit:?|got) -?\d|(?:max|maximum|limit)\b.{0,40}\d",
)
"""How servers say that a prompt is longer than the model's context, each in words of its own: they
name it, and say that it is too long."""
_SAYS_OTHERWISE = _any_of(
    r"(?<!\+ )(?<!\+ `)max_(?:completion_|output_|new_)?tokens\b(?!.*\bgot -)\W*"
    r"(?:\(?\d+|is|are|must|should|exceeds|value|too)\b",
    r"(?:supports at most|maximum|max) (?:\d+ )?completion tokens",
    r"\brate\b|rate_limit|per[ -](?:min|day|hour)|\bTP[MD]\b|too many requests|quota|daily|monthly",
    r"\bplan\b|account|organi[sz]ation|timed? ?out|deadline|flagged|filter|does not exist",
    r"(?:image|file|upload|tool|function)s?(?: \w+)? (?:is|are|exceeds?)\b|tools?[.\[]|array",
    r"number of (?:images|files|messages|tools)|maximum count|too many messages",
    r"\w+\[\d+\]\.(?!content|text)\w|stop sequence|logit_bias|logprobs|temperature",
    r"Input should be|\bbest_of\b|schema|cache_control|more than (?:0|one)\b",
)
"""What has the same words, and is about another number: the answer's limit, a rate, a picture."""
_BAD_DRAW = re.compile(
    r"tool_use_failed|failed_generation|malformed[ _]function[ _]call|output_parse_failed"
    r"|(?:failed|unable) to (?:parse|generate) (?:a |the )?(?:tool|function)[ _]call"
    r"|failed to parse input at pos|json_validate_failed|tool[ _]call[ _]validation[ _]failed",
    re.I,
)
"""What a server says with status 400, 422 or 500 that can't read what its own model wrote."""
_STATUS = re.compile("[45][0-9][0-9]")
_NAMED_CODES = {
    "rate_limit": 429, "insufficient_quota": 429, "too_many_requests": 429,
    "resource_exhausted": 429, "throttl": 429, "overloaded": 529, "capacity": 529,
    "unavailable": 503, "server_error": 500, "internal": 500, "timeout": 408,
    "authentication": 401, "permission": 403,
    "billing": 402, "not_found": 404, "invalid": 400, "bad_request": 400, "context_length": 400,
    "exceed_context": 400,
}  # fmt: skip
"""Statuses, by words in an error's code or type."""
_MINIMAX = {
    "1001": 408, "1002": 429, "1004": 401, "1008": 402, "1026": 400, "1027": 400, "1039": 429,
    "1041": 429, "1042": 400, "2013": 400, "2045": 429, "2049": 401, "2056": 429, "2061": 403,
}  # fmt: skip
"""Statuses, by MiniMax's codes (https://platform.minimax.io/docs/api-reference/errorcode)."""
_OF_THE_ACCOUNT = {401, 402, 403}
_NO_CREDIT = {"insufficient_quota", "billing_error"}
_SAYS_NO_CREDIT = re.compile(r"credit balance|usage limits?\b|spend(?:ing)? limit", re.I)
"""Anthropic says so with a 400 of type invalid_request_error
(https://platform.claude.com/docs/en/api/errors)."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint, and the names of its settings for messages."""

    vendor: str
    url: str = field(repr=False)
    key_variable: str
    url_variable: str
    timeout_s: float
    key: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of the user's own, which may hold keys."""

    @property
    def shown(self) -> str:
        """The address without secret parts, for messages."""
        return bare_address(self.url)

    def answered(self, text: object) -> str:
        """An answer's text as valid Unicode, without the key that was sent, which a server may send
        back; '' if it gave none."""
        return self._bare(text_in(text))

    def scrub(self, text: str) -> str:
        """The text on one line, cut, without the key or anything that looks like one."""
        text = " ".join(without_keys(self._bare(text)).split())
        return text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]}..."

    def _bare(self, text: str) -> str:
        """The text without what may be a key: the one that was sent, words of headers, and what
        the address's query names so."""
        words = (word for value in self.headers.values() for word in value.split())
        for key in (self.key, *words, *keys_in_query(self.url)):
            text = without_key(text, key)
        return text


class SdkProvider:
    """The vendors' common base; `async with` opens and closes the connections."""

    name: str
    client_class: str
    """The client's class name in the SDK, whose module has the provider's name."""
    deterministic = False
    cacheable = True
    bills_unanswered = True
    slots: int | None = None

    def __init__(self, endpoint: Endpoint, model: str, dialect: Dialect | None = None) -> None:
        self._dialect = dialect or Dialect()
        self.variant = self._dialect.variant
        self.warn: Callable[[str], None] = lambda text: None
        """Called with a line when it was found how the server wants to be asked."""
        self.base_url = endpoint.url
        self.model = model
        self._endpoint = endpoint
        self._client: Any = None

    async def __aenter__(self) -> Self:
        sdk = import_module(self.name)
        self._client = getattr(sdk, self.client_class)(**client_options(sdk, self._endpoint))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def _sent(
        self,
        body: Mapping[str, Any],
        send: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
        mend: Mend,
    ) -> dict[str, Any]:
        """The server's answer. If it took a request only as it wants it, all later ones are sent
        so too, and a line says so."""
        answer, dialect, found = await ask(self._dialect, body, send, mend)
        if found and dialect != self._dialect:  # else another call found the same
            self._dialect = dialect
            for why in found:
                self.warn(f"{self._endpoint.vendor} at {self._endpoint.shown} {why}")
        return answer


def client_options(sdk: Any, endpoint: Endpoint) -> dict[str, Any]:
    """Common arguments of AsyncAnthropic and AsyncOpenAI; `sdk` is the vendor's module."""
    parts = urlsplit(endpoint.url)  # a path is joined before the query
    loopback = parts.hostname in LOOPBACK
    return {
        "api_key": endpoint.key,
        "base_url": parts._replace(query="", fragment="").geturl().rstrip("/"),
        "default_query": dict(parse_qsl(parts.query, keep_blank_values=True)),
        # Only connecting has a limit of its own; the callers below limit the whole attempt.
        "timeout": sdk.Timeout(None, connect=min(CONNECT_S, endpoint.timeout_s)),
        "default_headers": dict(endpoint.headers),
        "max_retries": 0,  # attempts are counted by the ledger, above
        # aiohttp costs half the CPU of the SDKs' default; a proxy can't reach this machine's own
        # loopback, so the environment's proxies are left out there.
        "http_client": sdk.DefaultAioHttpClient(
            trust_env=not loopback,
            follow_redirects=False,  # nobody was asked whether to trust that address
        ),
    }


def bytes_bound(*texts: str) -> int:
    """An upper bound on tokens: UTF-8 bytes, plus room for a chat template's marks.

    A byte-level tokenizer never makes more tokens than there are bytes.
    """
    return sum(len(text.encode("utf-8")) + 16 for text in texts) + 64


def request_bound(request: Request, *others: str) -> int:
    """An upper bound on the tokens of a request's messages and tools, and of other texts."""
    texts = [message.content for message in request.messages]
    for call in (call for message in request.messages for call in message.calls):
        texts += [call.id, call.name, call.arguments + call.extra]
    texts += [message.call for message in request.messages if message.call]
    texts += [message.extra for message in request.messages if message.extra]
    schemas = (one.model_dump() for one in request.tools)
    return bytes_bound(*texts, *others) + sum(map(schema_bound, schemas))


async def post(
    client: Any, path: str, body: Mapping[str, Any], endpoint: Endpoint
) -> dict[str, Any]:
    """One attempt: the JSON object that a server answered; raises ProviderError.

    `client` is an AsyncAnthropic or AsyncOpenAI that makes no retries of its own.
    """
    import httpx2

    failure: ProviderError
    try:
        async with asyncio.timeout(endpoint.timeout_s):
            response = await client.post(path, cast_to=httpx2.Response, body=body)
    except Exception as error:  # whatever an SDK raises, the caller gets one clear line
        structured = "response_format" in body or "output_config" in body
        failure = explain_failure(error, endpoint, structured=structured)
    else:
        return decode(response.content, endpoint)
    raise failure


def decode(body: bytes, endpoint: Endpoint) -> dict[str, Any]:
    """The JSON object in an answer. Raises a transient, billed ProviderError for anything else,
    such as a proxy's page or an incomplete answer."""
    try:
        answer = json.loads(body)
    except UnicodeDecodeError:
        found = "bytes that are not UTF-8"
    except (ValueError, RecursionError):
        found = f"no JSON: '{_readable(body)}'" if body.strip() else "an empty body"
    else:
        if isinstance(answer, dict):
            return answer
        found = f"a JSON {type(answer).__name__}, not an object"
    raise malformed(endpoint, found)


def malformed(endpoint: Endpoint, found: str) -> ProviderError:
    """The error for an answer that arrived, so was billed, but can't be read."""
    return ProviderError(
        f"{endpoint.vendor} at {endpoint.shown} answered with {endpoint.scrub(found)}: check that "
        f"{endpoint.url_variable} (or provider.base_url) names a server of this API",
        transient=True,
        billed=True,
    )


def explain_failure(
    error: Exception, endpoint: Endpoint, *, structured: bool = False
) -> ProviderError:
    """Our error for an error of an SDK or its transport; see `refusal`."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        response = error.response  # type: ignore[attr-defined]
        if 300 <= status < 400:
            return _redirected(endpoint, status, response.headers.get("location", ""))
        if status < 400:  # an error event inside a stream
            body = getattr(error, "body", None)
            return failure_within(endpoint, error_in(as_dict(body)) or body or str(error))
        body = response.content
        return refusal(endpoint, status, response.headers, body, structured=structured)
    return _transport(error, endpoint)


def _redirected(endpoint: Endpoint, status: int, place: str) -> ProviderError:
    """The error for a server that names another: requests and keys go where the user said."""
    try:
        there = endpoint.scrub(bare_address(urljoin(endpoint.url, place)))
    except ValueError:
        there = "no address"
    return ProviderError(
        f"{endpoint.vendor} at {endpoint.shown} answered {status}, a redirect to {there}, which is "
        f"not followed: if you trust it, set {endpoint.url_variable} (or provider.base_url) to it",
        transient=False,
        billed=False,
    )


def refusal(
    endpoint: Endpoint,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    clock: Callable[[], float] = time.time,
    *,
    structured: bool = False,
) -> ProviderError:
    """Our error for an HTTP status of 400 or more.

    `structured`: the request had a JSON schema, which may be what the server refused.
    """
    detail, kind = server_says(body)
    if status == 400 and _SAYS_NO_CREDIT.search(detail):
        kind = "billing_error"
    account = status in _OF_THE_ACCOUNT or kind in _NO_CREDIT
    transient = status in _TRANSIENT or status >= 500
    if (advice := headers.get("x-should-retry")) in ("true", "false"):
        transient = advice == "true"
    message = (
        f"{endpoint.vendor} at {endpoint.shown} answered {status}: "
        f"{endpoint.scrub(detail)}: {_fix(endpoint, status, kind, structured)}"
    )
    if _is_too_long(status, kind, detail):
        return PromptTooLong(message)
    if status in (400, 422, 500) and _BAD_DRAW.search(body.decode("utf-8", "replace")):
        return bad_draw(endpoint, f"{status}: {detail}")
    return ProviderError(
        message,
        transient=transient and not account,
        refused=not transient and not account,
        busy=status in _BUSY,
        billed=(status >= 500 or status == 408 or (status in _BUSY and not account))
        and status not in _UNBILLED.get(urlsplit(endpoint.url).hostname or "", ()),
        retry_after=retry_after(headers, clock),
    )


def _is_too_long(status: int, kind: str, detail: str) -> bool:
    """Whether a refusal says that the prompt is longer than the model's context."""
    text = detail[:4000]  # some send the prompt back
    parts = _SENTENCE.split(text)
    named = any(_SAYS_PROMPT.search(one) and _SAYS_TOO_LONG.search(one) for one in parts)
    said = status == 413 or (status in (400, 422) and named)
    return kind in _TOO_LONG or (said and not _SAYS_OTHERWISE.search(text))


def bad_draw(endpoint: Endpoint, found: str) -> ProviderError:
    """The error for an answer that the server itself could not read: drawn again, each paid."""
    return ProviderError(
        f"{endpoint.vendor} at {endpoint.shown} could not read what its model wrote "
        f"({endpoint.scrub(found)}): it is drawn again; where this is frequent, choose another "
        "model, or give simpler tools",
        transient=True,
        billed=True,
        bad_draw=True,
    )


def error_in(answer: Mapping[str, Any]) -> object:
    """The error that a server wrote into an answer of status 200, in any vendor's form; None if
    there is none."""
    errors = answer.get("errors")
    named = answer.get("error") or (errors[0] if isinstance(errors, list) and errors else None)
    if isinstance(named, str | dict) and named:
        return named
    base = as_dict(answer.get("base_resp"))  # MiniMax's
    if (number := str(base.get("status_code") or 0)) != "0":
        said = f"{base.get('status_msg') or 'no message'} ({number})"
        return {"code": _MINIMAX.get(number, 500), "message": said}
    codes = (str(answer.get(name)) for name in ("code", "status", "status_code"))
    is_error = "error" in (answer.get("type"), answer.get("object"))
    return answer if named or is_error or any(map(_STATUS.fullmatch, codes)) else None


def failure_within(endpoint: Endpoint, error: object, *, drawn: bool = False) -> ProviderError:
    """Our error for one that stands inside an answer of status 200; see `refusal`. A code that says
    nothing is taken for a billed fault of the server, and so is all that was `drawn` before it."""
    body = json.dumps({"error": error}).encode()
    failure = refusal(endpoint, _status_of(error), {}, body)
    failure.billed |= drawn
    return failure


def _status_of(error: object) -> int:
    """The status that an error means by its code, type or text."""
    found = error if isinstance(error, dict) else {"message": error}
    fields = [found.get(name) for name in ("code", "status", "status_code", "type", "message")]
    if (code := next(filter(_STATUS.fullmatch, map(str, fields)), None)) is not None:
        return int(code)
    said = " ".join(map(str, fields)).lower().replace(" ", "_")
    named = (status for word, status in _NAMED_CODES.items() if word in said)
    return next(named, 500)


def retry_after(headers: Mapping[str, str], clock: Callable[[], float]) -> float | None:
    """Seconds that a server asks us to wait: `retry-after-ms`, else `retry-after`."""
    if (wait := _number(headers.get("retry-after-ms"))) is not None:
        return wait / 1000
    value = headers.get("retry-after", "")
    if (wait := _number(value)) is not None:
        return wait
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - clock())
    except (ValueError, OverflowError):
        return None


def text_in(value: object) -> str:
    """An answer's text as valid Unicode; '' if a server gave none."""
    return utf8(value) if isinstance(value, str) else ""


def _transport(error: Exception, endpoint: Endpoint) -> ProviderError:
    import aiohttp

    # version 2 of openai calls by httpx, the other SDKs by httpx2
    libraries = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, aiohttp.ConnectionTimeoutError):
            return _unreached(endpoint, "nothing accepts a connection in time")
        if isinstance(link, aiohttp.ClientConnectorError):
            return _no_connection(endpoint, link.os_error)
        if isinstance(link, aiohttp.ClientConnectionResetError) and "write" in str(link):
            return _unreached(endpoint, "the connection was closed before the request was sent")
    late = (TimeoutError, *(one.TimeoutException for one in libraries))
    if any(isinstance(link, late) for link in chain):
        return _broken_off(
            endpoint, f"no answer within {endpoint.timeout_s:g} s (provider.timeout_s)"
        )
    broken = [error for one in libraries for error in (one.HTTPError, one.StreamError)]
    network = (*broken, aiohttp.ClientError, OSError)
    if any(isinstance(link, network) for link in chain):
        return _broken_off(endpoint, f"the connection broke ({_cause(chain)})")
    return ProviderError(
        f"the {endpoint.vendor} SDK failed: {endpoint.scrub(_cause(chain))}: "
        f"update it with {install(endpoint.vendor)} -U",
        transient=False,
        billed=True,
    )


def _no_connection(endpoint: Endpoint, error: OSError) -> ProviderError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return ProviderError(
            "too many open files for another connection: lower search.concurrency, "
            "or raise the limit with `ulimit -n 4096`",
            transient=False,
            billed=False,
        )
    return _unreached(endpoint, f"nothing answers ({error.strerror or error})")


def _unreached(endpoint: Endpoint, found: str) -> ProviderError:
    """The error for a request that was never sent: not billed, and transient."""
    return ProviderError(
        f"{found} at {endpoint.shown}: check the network, start the server or correct "
        f"{endpoint.url_variable} (or provider.base_url)",
        transient=True,
        billed=False,
    )


def _broken_off(endpoint: Endpoint, found: str) -> ProviderError:
    return ProviderError(
        f"{endpoint.vendor} at {endpoint.shown} broke off: {endpoint.scrub(found)}: "
        "try again, or raise provider.timeout_s where answers are slow",
        transient=True,
        billed=True,
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _cause(chain: list[BaseException]) -> str:
    root = chain[-1]
    return f"{type(root).__name__}: {root}" if str(root) else type(root).__name__


def server_says(body: bytes) -> tuple[str, str]:
    """A server's own message, and its error's type or code, of any vendor's error shape."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return _readable(body) or "no message", ""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if not isinstance(error, dict):
        return str(error), ""
    message = str(error.get("message") or error.get("detail") or error)
    code, kind = error.get("code"), error.get("type")
    found = str(code if isinstance(code, str) else kind or "")
    behind = error.get("metadata")
    raw = behind.get("raw") if isinstance(behind, dict) else None
    if isinstance(raw, str):  # a gateway's, with what the vendor behind it said
        said, of = server_says(raw.encode("utf-8", "replace"))
        return f"{message}: {said}", found or of
    return message, found


def _readable(body: bytes) -> str:
    """A few words from a body that is not JSON, such as a proxy's HTML page."""
    text = body[:4096].decode("utf-8", "replace")
    if title := re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL):
        return title[1].strip()
    text = re.sub(r"<[^>]*>", " ", text)
    return " ".join(text.split())[:_LONGEST_DETAIL]


def _fix(endpoint: Endpoint, status: int, kind: str, structured: bool) -> str:
    if kind in _TOO_LONG or status == 413:
        return "shorten the prompt, or choose a model with a longer context"
    if status in (401, 403):
        return f"check the key in {endpoint.key_variable}"
    if status == 402 or kind in _NO_CREDIT:
        return "add credit to the account"
    if status == 404:
        return f"check the model's name and {endpoint.url_variable} (or provider.base_url)"
    if status in _TRANSIENT or status >= 500:
        return "try again later, or lower search.concurrency"
    if structured:
        return (
            "correct what it names; where this server or model knows no answers by JSON schema, "
            "provider.extra_body.response_format=null leaves it out, or if a judge asked, set "
            "judge.provider to another, or judge.enabled=false"
        )
    return (
        "correct the setting or prompt that it names; provider.extra_body.NAME=null leaves out a "
        "field that it does not know, provider.rename.NAME=OTHER renames one"
    )


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "nan")
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


_ROOM = 512
"""Tokens that a vendor may add to explain the schema; no vendor publishes the number."""


def without(schema: Mapping[str, Any], refused: Callable[[str, Any], bool]) -> dict[str, Any]:
    """The schema with all `refusal` keywords (keyword, value) moved into descriptions."""
    kept: dict[str, Any] = {}
    said = []
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs") and isinstance(value, Mapping):  # keys are names
            kept[keyword] = {name: _part(part, refused) for name, part in value.items()}
        elif keyword == "items":
            kept[keyword] = _part(value, refused)
        elif keyword == "anyOf" and isinstance(value, list):
            kept[keyword] = [_part(part, refused) for part in value]
        elif refused(keyword, value):
            said.append(f"{keyword}: {value}")
        else:
            kept[keyword] = value
    if said:
        before = f"{kept['description']} " if kept.get("description") else ""
        kept["description"] = f"{before}({', '.join(said)})"
    return kept


def _part(schema: Any, refused: Callable[[str, Any], bool]) -> Any:
    """The same of a part, which may be true or false; what is no schema, the server refuses."""
    return without(schema, refused) if isinstance(schema, Mapping) else schema


def schema_bound(schema: Mapping[str, Any] | None) -> int:
    """An upper bound on the input tokens of a schema; see `bytes_bound`."""
    return 0 if schema is None else len(json.dumps(schema).encode("utf-8")) + _ROOM
