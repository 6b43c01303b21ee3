"""Reads tests/golden/frames.txt: what a consumer and a served loader say, to the byte."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["FRAMES", "payload_of"]

_FILE = Path(__file__).parent.parent / "golden" / "frames.txt"
_PART = re.compile(r'"([^"]*)"|([0-9a-f]{2})\b', re.ASCII)


def _read() -> dict[str, tuple[str, bytes]]:
    frames: dict[str, tuple[str, bytes]] = {}
    name = ""
    for line in _FILE.read_text(encoding="ascii").splitlines():
        said = line.partition("#")[0].strip()
        if said[:2] in ("> ", "< "):
            name = said[2:]
            frames[name] = (said[0], b"")
        elif said:
            parts = b"".join(text.encode() if not byte else bytes.fromhex(byte) for text, byte in _PART.findall(said))
            assert not _PART.sub("", said).strip(), f"{name}: {said}"
            frames[name] = (frames[name][0], frames[name][1] + parts)
    return frames


FRAMES = _read()
"""The sign of who sends it (`>` the consumer) and the whole frame, by the message's name."""


def payload_of(name: str) -> bytes:
    """A frame without its length."""
    return FRAMES[name][1][4:]
