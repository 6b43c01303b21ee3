"""WebDataset tars as record batches: files whose names agree up to the first dot are one sample.

A sample's columns are `__key__` and its files' suffixes, in lower case. `.json` becomes its value, `.npy` a list,
`.cls` and `.id` integers, `.txt` text; all else stays bytes. Nothing is unpickled.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from o41td.errors import CorruptDataError
from o41td.writing.array_values import list_value_of
from o41td.writing.record_batches import record_batches

__all__ = ["tar_batches"]


def tar_batches(path: Path) -> Iterator[Any]:
    """Yields the samples of a tar, plain or compressed, in its order.

    Raises:
        CorruptDataError: A file in it cannot be read as its suffix says; it is named.
        SchemaError: Values of one suffix have no type in common.
    """
    yield from record_batches(_samples_of(path))


def _samples_of(path: Path) -> Iterator[dict[str, Any]]:
    sample: dict[str, Any] = {}
    with tarfile.open(path, "r|*") as tar:
        for member in tar:
            folder, _, name = member.name.rpartition("/")
            stem, dot, suffix = name.partition(".")
            if not member.isfile() or not dot or not stem or _META.match(member.name):
                continue
            suffix = suffix.lower()
            key = f"{folder}/{stem}" if folder else stem
            if sample and sample["__key__"] != key:
                yield sample
                sample = {}
            sample.setdefault("__key__", key)
            file = tar.extractfile(member)
            assert file is not None, "a plain file can be read"
            if suffix in sample:
                raise CorruptDataError(f"sample {key!r} has two files .{suffix}", shard=str(path))
            sample[suffix] = _value_of(file.read(), suffix, f"{path}: {member.name}")
    if sample:
        yield sample


def _array_of(data: bytes) -> Any:
    return list_value_of(np.lib.format.read_array(io.BytesIO(data)))  # which refuses objects


_META = re.compile("__[^/]*__($|/)")
"""Names that are no sample's, to WebDataset."""

_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "json": json.loads,
    "npy": _array_of,
    "cls": int,
    "id": int,
    "index": int,
    "txt": bytes.decode,
    "text": bytes.decode,
}


def _value_of(data: bytes, suffix: str, where: str) -> Any:
    decode = _DECODERS.get(suffix.rpartition(".")[2])
    if decode is None:
        return data
    try:
        return decode(data)
    except (ValueError, EOFError) as error:
        raise CorruptDataError(f"the file cannot be read as .{suffix}: {error}", shard=where) from error
