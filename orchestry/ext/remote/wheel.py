"""A wheel of the package as it runs here: released, installed from a checkout, or edited since."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import orchestry
from orchestry.core.distribution import NAME
from orchestry.core.errors import ConfigError, unknown
from orchestry.task.registry import bundled


def pack(extras: Sequence[str] = ()) -> tuple[str, bytes]:
    """File name and bytes of a wheel with the package's code, tasks, configs and behaviours: always
    the same bytes for the same code. Raises ConfigError for an extra that it does not have."""
    try:
        about = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"{NAME} is not installed here: pip install -e . in its folder") from None
    known = about.metadata.get_all("Provides-Extra") or []
    for extra in extras:
        if extra not in known:
            raise ConfigError(unknown("extra", extra, sorted(known)))
    stem = f"{NAME.replace('-', '_')}-{about.version}"
    info = f"{stem}.dist-info"
    files = dict(_content())
    files[f"{info}/METADATA"] = (about.read_text("METADATA") or "").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = (about.read_text("entry_points.txt") or "").encode()
    rows = [f"{name},{_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return f"{stem}-py3-none-any.whl", packed.getvalue()


def _content() -> Iterator[tuple[str, bytes]]:
    """The package's files by their place in the wheel."""
    package = Path(orchestry.__file__).parent
    places = {package: "orchestry"}
    kinds = ("tasks", "configs", "behaviors")
    places |= {bundled(kind): f"orchestry/_bundled/{kind}" for kind in kinds}
    for folder, place in places.items():
        for path in sorted(folder.rglob("*")):
            inner = path.relative_to(folder)
            hidden = any(part.startswith(".") for part in inner.parts)  # .env has keys
            left_out = hidden or {"__pycache__", "_bundled"} & {*inner.parts}
            if path.is_file() and not left_out:
                yield f"{place}/{inner.as_posix()}", path.read_bytes()


def _digest(data: bytes) -> str:
    found = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={found.rstrip(b'=').decode()}"
