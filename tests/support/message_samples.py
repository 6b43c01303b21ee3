"""One plausible message of each type, and strategies that spoil them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from o41td.workers.messages import (
    MESSAGE_TYPES,
    AttachArena,
    BatchesGathered,
    BatchesReady,
    BlockDecoded,
    BlockFailed,
    CountGoesOn,
    DecodeBlock,
    FooterFailed,
    FooterRead,
    JoinLoader,
    LoaderFailed,
    LoaderJoined,
    LoaderNotice,
    LoaderOpened,
    LoaderPlanned,
    Message,
    OpenLoader,
    OpenProgress,
    PieceBegun,
    ReadFooter,
    Retire,
    ServeFrom,
    StatsReply,
    StatsRequest,
    StreamEnded,
    StreamFailed,
    WorkerReady,
)

__all__ = ["MESSAGES", "spoilt", "wire_values"]

_ERROR = {"kind": "CorruptDataError", "fields": {"detail": "torn", "row": 3}, "notes": ["also"]}
_FIELDS = [{"name": "x", "dtype": "f32", "pad": float("inf")}]

MESSAGES: list[Message] = [
    WorkerReady(5),
    ReadFooter(1, "web", "/data/\udcff.parquet", "parquet", None, 1 << 26, _FIELDS, None),
    FooterRead(1, bytes(16), bytes(16), bytes(16), bytes(16), 600, 4096, -1, "v"),
    CountGoesOn(1),
    FooterFailed(1, _ERROR),
    AttachArena({"num_slots": 3}, [_FIELDS], ["web"], ["parquet"], 1 << 26, {"secret_access_key": "s"}),
    DecodeBlock(1, 0, 2, 10, [2**64 - 1, 0, 4096], True, [[0, "/a", 4096, 1, 10, 0, 10, 80, 0, 0, 10, 0]]),
    PieceBegun(1, 0),
    BlockDecoded(1, 10, 80, 0.5, 0.25, 0.0, [bytes(8)], [_ERROR]),
    BlockFailed(1, [bytes(16)], [_ERROR]),
    Retire(),
    OpenLoader({"seed": 2**64 - 1}, {"region": "eu"}, [0], 1, None, [{"stage": 0}], False, "pid1-rank0", None),
    JoinLoader(3),
    ServeFrom(1, 0, 2, 0, 2**40, 2**40),
    BatchesGathered(1, 16, 15, 480, 0.5, 0),
    StatsRequest(1),
    LoaderJoined({"seed": 7}, {"seed": 7}, 8),
    OpenProgress(1, 9),
    LoaderOpened({"num_slots": 3}, [{"name": "web"}], {"total": 1}, "shm", ["a notice"]),
    LoaderPlanned([{"name": "web"}], {"total": 1}, []),
    LoaderFailed(_ERROR),
    BatchesReady(3, 0, [1, 2], [2, 1], [2**64 - 1, 0], [True, False], bytes(24)),
    StreamEnded(1, 7),
    StreamFailed(1, _ERROR),
    LoaderNotice("worker 0 is replaced"),
    StatsReply(1, {"ranks": [], "nan": [1.5, None]}),
]
assert [type(message) for message in MESSAGES] == list(MESSAGE_TYPES)


def wire_values() -> st.SearchStrategy[Any]:
    """Whatever msgpack can carry: NaN, infinities, integers of 64 bits, surrogates, bytes, nested lists and maps."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats()
        | st.text(st.characters(codec="utf-8"), max_size=8)
        | st.binary(max_size=24)
    )
    some = st.lists(leaves, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), leaves, max_size=2)
    return leaves | some | st.lists(some, max_size=2)


@st.composite
def spoilt(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with a few of them changed, cut out, put in, or doubled."""
    spoiling = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(spoiling)))
        stop = draw(st.integers(start, min(len(spoiling), start + 8)))
        spoiling[start:stop] = draw(st.binary(max_size=8) | st.just(bytes(spoiling[start:stop]) * 2))
    return bytes(spoiling)
