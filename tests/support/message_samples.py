"""One message of each type, made from its annotations, and strategies that spoil them."""

from __future__ import annotations

from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from o41td.workers.messages import MESSAGE_TYPES, BatchesReady, Message

__all__ = ["MESSAGES", "spoilt", "wire_values"]


def _sample_of(hint: Any) -> Any:
    """A value that an annotation allows: large numbers, a file name that is no text, bytes of three int64."""
    plain = {int: 2**64 - 1, bool: True, float: 0.25, str: "/data/\udcff.parquet", bytes: bytes(24), Any: [None, 1.5]}
    if hint in plain:
        return plain[hint]
    if hint == dict[str, Any]:
        return {"pad": float("inf"), "é": [-(2**63), {"x": None}]}
    if get_origin(hint) is UnionType:
        return _sample_of(get_args(hint)[0])
    assert get_origin(hint) is list, hint
    return [_sample_of(get_args(hint)[0])] * 2


def _message_of(kind: type[Message]) -> Message:
    if kind is BatchesReady:  # its columns must fit one another
        return BatchesReady(3, 0, [1, 2], [2, 1], [2**64 - 1, 0], [True, False], [9, -1], bytes(8))
    return kind(**{name: _sample_of(hint) for name, hint in get_type_hints(kind).items()})


MESSAGES: list[Message] = [_message_of(kind) for kind in MESSAGE_TYPES]


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
