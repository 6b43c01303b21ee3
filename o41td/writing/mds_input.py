"""MDS folders (mosaicml-streaming) as record batches, by the format's own description.

A shard is a count n, n + 1 offsets (both 32 bits), a config that is not needed here, and n samples. A sample is the
sizes of its columns of variable size, then all columns' bytes in the order of the index.
"""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from o41td.errors import ConfigError, CorruptDataError
from o41td.plain_json import parse_plain_json
from o41td.writing.array_values import list_value_of
from o41td.writing.record_batches import record_batches

__all__ = ["MDS_INDEX", "mds_batches"]

MDS_INDEX = "index.json"
"""The file that makes a folder one of MDS."""

_MAX_INDEX_BYTES = 1 << 29
_SHAPE_DTYPES = ("<u1", "<u2", "<u4", "<u8")
_ARRAY_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_SCALARS = frozenset(_ARRAY_DTYPES.values())
_DECOMPRESSORS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "br": lambda data, size: pa.decompress(data, size, codec="brotli", asbytes=True),
    "bz2": lambda data, _size: bz2.decompress(data),
    "gz": lambda data, _size: gzip.decompress(data),
    "snappy": lambda data, size: pa.decompress(data, size, codec="snappy", asbytes=True),
    "zstd": lambda data, _size: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}

_Decoder = Callable[[bytes], Any]


def mds_batches(folder: Path) -> Iterator[Any]:
    """Yields the samples of an MDS folder, shard after shard, as its index lists them.

    Raises:
        CorruptDataError: The index or a shard is not what it should be.
        ConfigError: A column's encoding, or a compression, is not known, or is a pickle.
    """
    index = folder / MDS_INDEX
    try:
        document = parse_plain_json(index.read_bytes(), max_bytes=_MAX_INDEX_BYTES)
        shards = list(document["shards"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"this is no index of MDS: {error}", shard=str(index)) from error
    for shard in shards:
        if shard.get("format") != "mds":
            raise ConfigError(f"{index}: a shard has format {shard.get('format')!r}, and only mds is known")
        yield from record_batches(_samples_of(folder, shard))


def _samples_of(folder: Path, shard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    names, sizes = shard["column_names"], shard["column_sizes"]
    decoders = [_decoder_of(encoding) for encoding in shard["column_encodings"]]
    data, where = _bytes_of(folder, shard)
    try:
        count = int(np.frombuffer(data, "<u4", 1)[0])
        offsets = np.frombuffer(data, "<u4", count + 1, 4).tolist()
        if count != shard["samples"] or offsets[-1] != len(data):
            raise CorruptDataError("the shard is not as long as it says", shard=where)
        for number in range(count):
            yield _sample_of(data[offsets[number] : offsets[number + 1]], names, sizes, decoders)
    except (IndexError, KeyError, ValueError) as error:
        raise CorruptDataError(f"a sample cannot be read: {error}", shard=where) from error


def _sample_of(data: bytes, names: list[str], sizes: list[int | None], decoders: list[_Decoder]) -> dict[str, Any]:
    num_ragged = sum(size is None for size in sizes)
    ragged = iter(np.frombuffer(data, "<u4", num_ragged).tolist())
    at = 4 * num_ragged
    sample = {}
    for name, size, decode in zip(names, sizes, decoders, strict=True):
        length = next(ragged) if size is None else size
        sample[name] = decode(data[at : at + length])
        at += length
    if at != len(data):
        raise ValueError(f"it has {len(data)} bytes, and its columns {at}")
    return sample


def _bytes_of(folder: Path, shard: Mapping[str, Any]) -> tuple[bytes, str]:
    raw = folder / shard["raw_data"]["basename"]
    if raw.is_file() or not shard.get("compression"):
        return raw.read_bytes(), str(raw)
    name = str(shard["compression"]).partition(":")[0]
    decompress = _DECOMPRESSORS.get(name)
    if decompress is None:
        raise ConfigError(f"{folder}: compression {name!r} is not known; {', '.join(_DECOMPRESSORS)} are")
    packed = folder / shard["zip_data"]["basename"]
    return decompress(packed.read_bytes(), int(shard["raw_data"]["bytes"])), str(packed)


def _decoder_of(encoding: str) -> _Decoder:
    name, _, rest = encoding.partition(":")
    if name in _SCALARS:
        return _scalar_decoder(name)
    if name == "ndarray":
        dtype, _, shape = rest.partition(":")
        return _array_decoder(dtype or None, tuple(map(int, shape.split(","))) if shape else None)
    known: dict[str, _Decoder] = {
        "bytes": bytes,
        "str": bytes.decode,
        "int": lambda data: int(np.frombuffer(data, "<i8", 1)[0]),
        "str_int": int,
        "str_float": float,
        "str_decimal": lambda data: Decimal(data.decode()),
        "json": json.loads,
        "jpeg": bytes,
        "png": bytes,
        "pil": bytes,  # width, height, the mode's length, the mode, raw pixels
        "jpeg_array": _images_of,
        "jpegarray": _images_of,
        "list[jpeg]": lambda data: _images_of(data[4:]),  # behind four bytes that mean nothing yet
        "list[png]": lambda data: _images_of(data[4:]),
        "list[pil]": lambda data: _images_of(data[4:]),
    }
    if name not in known:
        why = "pickles are not read, since they can run code" if name == "pkl" else "it is not known"
        raise ConfigError(f"a column of the MDS folder has encoding {encoding!r}: {why}")
    return known[name]


def _images_of(data: bytes) -> list[bytes]:
    """How many there are, the size of each, and their bytes."""
    (count,) = np.frombuffer(data, "<u4", 1).tolist()
    sizes = np.frombuffer(data, "<u4", count, 4)
    ends = (4 + 4 * count + np.cumsum(sizes, dtype=np.int64)).tolist()
    return [data[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]


def _scalar_decoder(dtype: str) -> _Decoder:
    return lambda data: np.frombuffer(data, dtype, 1)[0]  # of its own dtype to Arrow


def _array_decoder(dtype: str | None, shape: tuple[int, ...] | None) -> _Decoder:
    def decode(data: bytes) -> Any:
        at, kind, dims = 0, dtype, shape
        if kind is None:
            kind, at = _ARRAY_DTYPES[data[0]], 1
        if dims is None:
            num_dims, width = data[at] >> 2, data[at] & 3
            dims = tuple(np.frombuffer(data, _SHAPE_DTYPES[width], num_dims, at + 1).tolist())
            at += 1 + num_dims * (1 << width)
        return list_value_of(np.frombuffer(data, kind, offset=at).reshape(dims))

    return decode
