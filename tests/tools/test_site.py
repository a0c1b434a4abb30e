"""The site is built without a warning, is whole, and loads nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tools.site import ROOT, outside


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a link or an anchor that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.mark.slow
def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {"index.html", "cli.html", "how-it-works.html", "tasks/tldr/index.html"} <= pages
    wanted = [*outside(), *(f.relative_to(ROOT / "docs").as_posix() for f in _markdown())]
    for path in wanted:
        built = re.sub(r"README\.md$", "index.html", path).replace(".md", ".html")
        assert (site / built).is_file(), path


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\ssrc=[\"']?(?:https?:)?//[^>]*>"
        r"|<link\b[^>]*rel=[\"']?(?:stylesheet|preconnect|icon)[^>]*href=[\"']?(?:https?:)?//[^>]*>"
    )
    found = [hit for page in site.rglob("*.html") for hit in loading.findall(page.read_text())]
    found += [
        hit
        for sheet in site.rglob("*.css")
        for hit in re.findall(r"(?:url\(|@import )[\"']?https?://[^\"')]*", sheet.read_text())
    ]
    assert not found


@pytest.mark.slow
def test_links_out_of_docs_lead_to_pages(site: Path) -> None:
    text = (site / "write-a-task.html").read_text(encoding="utf-8")
    assert 'href="tasks/tldr/index.html"' in text
    assert 'href="benchmarks.html#reward-hacks-against-code-collaboration"' in text
    contributing = (site / "CONTRIBUTING.html").read_text(encoding="utf-8")
    assert 'href="benchmarks/index.html"' in contributing


def test_lists_are_nested_by_four_spaces() -> None:
    """With fewer, the site shows an inner list as part of the outer one."""
    ours = [page for page in _markdown() if page.name != "RESULTS.md"]  # in which models speak
    pages = [*ours, *(ROOT / path for path in outside() if path.endswith(".md"))]
    for page in pages:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        assert not re.findall(r"^ {1,3}[-*] .*", prose, flags=re.M), page


def _markdown() -> list[Path]:
    return list((ROOT / "docs").rglob("*.md"))
