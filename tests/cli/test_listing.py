"""`orchestry runs` and `orchestry compare` on real runs."""

from __future__ import annotations

import json

from tests.cli.support import FAKE, CommandLine


def test_runs_are_listed_and_compared(cli: CommandLine) -> None:
    cli("runs").failed(2, "there is no folder ./runs here")
    for name, k in (("few", 2), ("many", 4)):
        assert cli("run", *FAKE, "--run-name", name, "--k-samples", k).code == 0
        assert cli("evaluate", f"runs/{name}", "--split", "dev").code == 0
    shown = cli("runs", "--sort", "reward")
    assert shown.code == 0
    assert all(word in shown.out for word in ("runs/few", "runs/many", "words", "3 of 3", "2 runs"))
    listed = json.loads(cli("runs", "--where", "run=few", "--json").out)
    assert [row["run"] for row in listed["runs"]] == ["runs/few"]
    cli("runs", "--where", "tsak=x").failed(2, "'task'")

    beside = cli("compare", "runs/few", "last")
    assert beside.code == 0
    assert "search.k_samples" in beside.out
    assert "held-out best of k, dev" in beside.out
    assert "no gain is claimed" not in beside.out
    plain = json.loads(cli("compare", "runs/few", "runs/many", "--json").out)
    assert plain["settings"] == {"search.k_samples": [2, 4]}
    cli("compare", "runs/few", "runs/few").failed(2, "is given twice")
    cli("compare", "runs/few", "runs/nowhere").failed(2, "does not exist")
