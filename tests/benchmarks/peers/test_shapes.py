"""The benchmark of servers' shapes: its server and its judge, by our client and a plain one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.shapes import Package, Played, play, put, reason, section, serving
from benchmarks.peers.shapes_items import CASES, ITEMS
from benchmarks.peers.with_clients import Client, OpenAISdk, Orchestry
from benchmarks.peers.with_clients import play as asked


async def _played(client: Client) -> Played:
    async with serving() as url, client:
        return Played(await asked(client, url), cpu_ms=1.0, others=0.0)


async def test_ours_is_right_in_every_item() -> None:
    found = await _played(Orchestry())
    assert {item: found.cell(item, ()) for item in ITEMS} == dict.fromkeys(ITEMS, "right")


async def test_a_plain_client_is_wrong_where_it_reads_only_openais_form() -> None:
    client = OpenAISdk()
    found = await _played(client)
    cells = {item: found.cell(item, client.not_offered) for item in ITEMS}
    assert cells["headers"] == cells["content null"] == cells["refusal"] == "right"
    assert cells["arguments as an object"] == cells["content in parts"] == "wrong"
    assert cells["bad draw"] == cells["illegal tool name"] == "not offered"
    assert cells["thoughts are billed"] == "1 of 3"


def test_no_client_is_right_by_doing_nothing() -> None:
    silent = {"text": "", "calls": [], "refused": False}
    right = [case.item for case in CASES if case.right([silent])]
    assert right == ["content null", "thoughts in the text"], "what is empty there"
    assert not any(case.right([{"error": "odd"}]) for case in CASES)


def test_the_section_has_a_row_per_item_and_per_client(tmp_path: Path) -> None:
    none = Played([[{"error": "odd"}]] * len(CASES), 0.5, 0.0)
    pack = Package("openai", "1.0", "MIT", 12.3, "3, 2025-01-01 to 2026-01-01")
    found = {"orchestry": none, "openai": none}
    text = section(found, {"openai": pack}, 640, {"ours": 0.001, "tenacity": 0.07})
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 * 2 + len(ITEMS) + len(found)
    score = f"0 of {len(ITEMS)} | 0 of {len(CASES)} | 0.50"
    assert f"openai | {score} | openai 1.0 | 12 | MIT | 3, 2025-01-01 to 2026-01-01 |" in text
    assert text.count("none is.") == 1
    place = tmp_path / "page.md"
    place.write_text("Before.\n<!-- shapes -->\nold\n<!-- end of shapes -->\nAfter.\n")
    for _ in range(2):
        put(reason(found, {"openai": pack}, {"ours": 0.001, "tenacity": 0.07}), place)
    lines = place.read_text().splitlines()
    assert [lines[0], lines[-1], max(map(len, lines)) <= 100] == ["Before.", "After.", True]
    assert "old" not in lines
    assert "openai 1.0 in 0 (0.50 ms, 12 MB). A library is taken" in " ".join(lines)


@pytest.mark.parametrize("client", ["orchestry"])
async def test_a_client_is_played_and_timed_in_a_process_of_its_own(client: str) -> None:
    found = (await play([client], calls=64, patience_s=0.0))[client]
    assert found.cpu_ms > 0.0
    assert len(found.found) == len(CASES)
