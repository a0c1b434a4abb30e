"""What a machine says of its GPUs, and a port that is free there.

Only the standard library is imported: `orchestry remote` sends this source to other machines.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress

GPUS_S = 20.0
"""How long nvidia-smi may take."""
LONGEST = 300
"""Characters of nvidia-smi's fault."""


def gpus(keys: Sequence[str]) -> tuple[list[dict[str, str]], str]:
    """What nvidia-smi says of each GPU, and what it says instead; neither without it."""
    if shutil.which("nvidia-smi") is None:
        return [], ""
    query = ["nvidia-smi", f"--query-gpu={','.join(keys)}", "--format=csv,noheader,nounits"]
    try:
        rows = [line.split(", ") for line in _said(query).splitlines()]
    except (OSError, subprocess.SubprocessError) as error:
        return [], str(error)
    odd = " ".join(", ".join(row) for row in rows if len(row) != len(keys))
    cards = [dict(zip(keys, row, strict=True)) for row in rows if len(row) == len(keys)]
    return cards, odd.strip()[:LONGEST]


def _said(command: list[str]) -> str:
    """What a command prints. A hung driver keeps it even from being killed, and `subprocess.run`
    would wait for its end."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdout=pipe, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    try:
        return process.communicate(timeout=GPUS_S)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
        raise subprocess.SubprocessError(f"no answer within {GPUS_S:g} s") from None
    finally:
        assert process.stdout is not None
        process.stdout.close()


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody has, of loopback or of all networks ('')."""
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])
