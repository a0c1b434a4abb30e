"""Request keys: journal, cache and recorded replay treat requests with equal keys as the same
request.

A changed key would make every existing journal and cache useless.
"""

from __future__ import annotations

from hashlib import blake2b

from orchestry.core.types import Provider, Request


def request_digest(request: Request) -> str:
    """32 hex digits over the whole request, its model and sample index included."""
    unset = {"response_schema"} if request.response_schema is None else set[str]()
    text = request.model_dump_json(exclude=unset)  # as before schemas existed
    return blake2b(text.encode("utf-8"), digest_size=16).hexdigest()


def place(name: str, base_url: str) -> str:
    """12 hex digits over the provider's name and address."""
    return blake2b(f"{name}\n{base_url}".encode(), digest_size=6).hexdigest()


def place_of(provider: Provider) -> str:
    """Its place. One that adds fields to each request (`Dialect`) is another than one without."""
    return place(provider.name, provider.base_url + getattr(provider, "variant", ""))


def request_key(provider: Provider, request: Request) -> str:
    """`<place>-<digest>`: the same request at the same provider, in any run."""
    return f"{place_of(provider)}-{request_digest(request)}"


def place_of_key(key: str) -> str:
    """Who answers, in a key that `request_key` made."""
    return key.rpartition("-")[0]


def digest_of_key(key: str) -> str:
    """The request's digest in a key that `request_key` made."""
    return key.rpartition("-")[2]
