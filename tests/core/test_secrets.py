"""Secrets of the environment leave no answer, at any depth and at any cut."""

from __future__ import annotations

from typing import Any

import pytest

from orchestry.core.secrets import Redactor

ENVIRON = {
    "ANTHROPIC_API_KEY": "sk-ant-123456",
    "Db_Password": " sk-ant-123456789\n",
    "GH_TOKEN": "ab.*c(d]e",
    "CLIENT_SECRET": "ünïcödé-",
    "SHORT_KEY": "1234567",
    "HOME": "/home/somebody",
}


@pytest.mark.parametrize(
    ("value", "redacted"),
    [
        ("<sk-ant-123456>", "<[secret]>"),
        ("sk-ant-123456789", "[secret]"),
        (b"\0ab.*c(d]e\xff", b"\0[secret]\xff"),
        ("ünïcödé-".encode(), b"[secret]"),
        ("1234567 /home/somebody", "1234567 /home/somebody"),
        ([1, ("ab.*c(d]e", None)], [1, ("[secret]", None)]),
        ({("ab.*c(d]e",): [b"sk-ant-123456"]}, {("[secret]",): [b"[secret]"]}),
        ({frozenset({"ab.*c(d]e"}), 1.5}, {frozenset({"[secret]"}), 1.5}),
    ],
)
def test_a_value_is_redacted(value: Any, redacted: Any) -> None:
    assert Redactor(ENVIRON).value(value) == redacted


@pytest.mark.parametrize(
    ("cut", "shown"),
    [(3, "123"), (8, "12345678"), (9, "12345678[secret]"), (16, "12345678[secret]")],
)
def test_no_cut_leaves_half_a_secret(cut: int, shown: str) -> None:
    assert Redactor(ENVIRON).text("12345678ab.*c(d]e and more", cut) == shown


def test_no_secrets_no_change() -> None:
    redactor = Redactor({"A_KEY": "", "HOME": "/root"})
    assert redactor.value(["", b"", {"/root": 1}]) == ["", b"", {"/root": 1}]
    assert redactor.text("a key", 3) == "a k"
