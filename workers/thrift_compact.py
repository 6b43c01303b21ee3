"""Thrift's compact protocol, as much of it as Parquet's headers and footers are written in.

After "Thrift Compact protocol encoding" of Apache Thrift's specification. A struct read is a dict by field number; what
is written is given as (field number, kind, value). Nothing here knows what a field means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["BINARY", "I32", "I64", "LIST", "STRUCT", "read_struct", "read_varint", "struct_bytes"]

_TRUE, _FALSE, _BYTE, _I16, I32, I64, _DOUBLE, BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)
_DEEPEST = 8
_LONGEST_VARINT = 10


def read_struct(data: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """Returns the struct that begins at a place, and the place behind it.

    Integers and bools are those, text and bytes are memoryviews, lists are lists. Parquet's headers have no doubles, of
    which nothing is kept, and no maps, which are refused.

    Raises:
        ValueError: It is none, or longer than the data.
    """
    try:
        return _read_struct(data, at, 0)
    except IndexError:
        raise ValueError("a struct ends behind the data") from None


def _read_struct(data: memoryview, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if depth > _DEEPEST:
        raise ValueError("structs lie too deep in each other")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if not head:
            return fields, at
        kind = head & 0x0F
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_integer(data, at)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _read_value(data, at, kind, depth)


def _read_value(data: memoryview, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_I16, I32, I64):
        return _read_integer(data, at)
    if kind == STRUCT:
        return _read_struct(data, at, depth + 1)
    if kind == BINARY:
        size, at = read_varint(data, at)
        if size > len(data) - at:
            raise ValueError("a text ends behind the data")
        return data[at : at + size], at + size
    if kind in (LIST, _SET):
        return _read_list(data, at, depth)
    if kind in (_TRUE, _FALSE, _BYTE):
        return data[at], at + 1
    if kind == _DOUBLE:
        return None, at + 8
    raise ValueError(f"no field of kind {kind} is known")


def _read_list(data: memoryview, at: int, depth: int) -> tuple[list[Any], int]:
    head = data[at]
    count, at = head >> 4, at + 1
    if count == 0x0F:
        count, at = read_varint(data, at)
    if count > len(data) - at:  # each value takes a byte at least
        raise ValueError("a list ends behind the data")
    values = []
    for _ in range(count):
        value, at = _read_value(data, at, head & 0x0F, depth + 1)
        values.append(value)
    return values, at


def read_varint(data: memoryview, at: int, *, longest: int = _LONGEST_VARINT) -> tuple[int, int]:
    """Returns the integer, seven bits a byte and the lowest first, at a place, and the place behind it.

    Raises:
        IndexError: The data end before it does.
        ValueError: It has more than `longest` bytes.
    """
    value = 0
    for place in range(longest):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("an integer has no end")


def _read_integer(data: memoryview, at: int) -> tuple[int, int]:
    value, at = read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def struct_bytes(fields: Iterable[tuple[int, int, Any]]) -> bytes:
    """Returns a struct of fields in ascending order: (number, kind, value).

    Values are an int (I32, I64), bytes (BINARY), the bytes of a struct (STRUCT), or (kind, values) of a LIST.
    """
    out = bytearray()
    before = 0
    for number, kind, value in fields:
        assert 0 < number - before < 16, "fields are near each other, and ascend"
        out.append((number - before) << 4 | kind)
        out += _value_bytes(kind, value)
        before = number
    out.append(0)
    return bytes(out)


def _value_bytes(kind: int, value: Any) -> bytes:
    if kind in (I32, I64):
        return _varint_bytes((value << 1) ^ (value >> 63))
    if kind == BINARY:
        return _varint_bytes(len(value)) + bytes(value)
    if kind == LIST:
        return _list_bytes(*value)
    assert kind == STRUCT, f"nothing of kind {kind} is written"
    return bytes(value)


def _list_bytes(kind: int, values: Sequence[Any]) -> bytes:
    head = bytes([len(values) << 4 | kind]) if len(values) < 0x0F else bytes([0xF0 | kind]) + _varint_bytes(len(values))
    return head + b"".join(_value_bytes(kind, value) for value in values)


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
