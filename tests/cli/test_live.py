"""`orchestry watch`, started as a person starts it."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.cli.support import FAKE, CommandLine

ORCHESTRY = (sys.executable, "-m", "orchestry")


def test_a_run_is_watched_until_ctrl_c(cli: CommandLine, tmp_path: Path) -> None:
    assert "there is no run in ./runs yet" in cli("watch").err
    cli("watch", "nowhere").failed(2, "nowhere does not exist")
    assert cli("run", *FAKE, "--run-name", "here").code == 0
    watch = subprocess.Popen(
        [*ORCHESTRY, "watch", "last"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with watch:
        assert watch.stdout
        address = watch.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=20) as page:
            assert b'"task":"words"' in page.read()
        port = address.split(":")[2].split("/")[0]
        cli("watch", "--port", port).failed(2, f"port {port} can't be used")
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 0
        assert watch.stderr
        assert "no longer kept up to date" in watch.stderr.read()
