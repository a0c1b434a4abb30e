"""What tasks and models wrote stays text: checked with a Markdown reader."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from orchestry.report.text import fenced, inline, plain, table

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = (
    "a | b || c",
    "<script>alert(1)</script> <img src=x onerror=y>",
    "```\n# heading\n```` and `code`",
    "[link](https://example.org) ![image](x.png) [^1] [ ] task",
    "**bold** _it_ __b__ ~~gone~~ a_b_c $x$",
    "# heading",
    "1. list",
    "- item",
    "=== ",
    "&amp; &lt; \\| \\",
    "\x1b[2J\x00\u202e\u200b\x07 after",
)
_SIGNS = st.text(alphabet=string.punctuation + "ab1 \n\t", max_size=40)


def leaves(tokens: list[Token]) -> list[Token]:
    """All tokens, those inside of others in their place."""
    return [leaf for token in tokens for leaf in (leaves(token.children or []) or [token])]


def said(tokens: list[Token]) -> str:
    """The text that a reader sees."""
    return "".join(token.content for token in leaves(tokens))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_shown_in_a_cell_and_does_nothing(text: str) -> None:
    tokens = READER.parse(table(["", "said"], [["x", inline(text)]]))
    kinds = {token.type for token in leaves(tokens)}
    assert not kinds & {"html_inline", "html_block", "link_open", "image", "em_open", "code_inline"}
    assert sum(token.type == "td_open" for token in tokens) == 2
    assert said(tokens) == "said" + "x" + " ".join(plain(text).split())


@given(_SIGNS)
def test_any_signs_are_shown_as_they_are(text: str) -> None:
    shown = " ".join(plain(text).split())
    paragraph = READER.parse(inline(text))
    assert said(paragraph) == shown
    assert {token.type for token in paragraph} <= {*("paragraph_open", "inline", "paragraph_close")}
    assert said(READER.parse(f"- {inline(text)}")) == shown


@given(st.text(alphabet="`~a \n", max_size=60))
def test_a_fence_holds_whatever_is_in_it(text: str) -> None:
    tokens = READER.parse(fenced(text) + "\n\nafter")
    assert [token.type for token in tokens] == [
        *("fence", "paragraph_open", "inline", "paragraph_close")
    ]
    assert tokens[0].content.rstrip("\n") == plain(text).rstrip("\n")


def test_a_long_text_is_cut_and_says_by_how_much() -> None:
    assert fenced("x" * 1300).count("x") == 1200 + 1  # and the one of `text`
    assert "… (100 more characters)" in fenced("x" * 1300)
    assert inline("x" * 250).endswith("… (50 more characters)")
