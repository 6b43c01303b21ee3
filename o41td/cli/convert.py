"""`o41td convert`: a stream's document of o41-training-data, as a config of o41td.

Configs share their vocabulary, and manifests are the same. What is left to do: storage settings are part of a document
there and an argument here, and so are rank and world size; and what is refused here is told before a stream is opened.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_snake
from rich.console import Console

from o41td.cli.console import open_console
from o41td.cli.failure import UsageProblem
from o41td.cli.wording import counted_text
from o41td.config import BatchStreamConfig, StorageConfig
from o41td.config_file import read_document
from o41td.errors import ConfigError
from o41td.manifest import read_manifest

__all__ = ["Converted", "convert_document", "convert_file"]

#  A key of the storage block there -> the setting here.
_STORAGE_KEYS = {
    "base_url": "endpoint_url",
    "s3_base_url": "endpoint_url",
    "virtual_hosted_style_request": "virtual_hosted_style",
}
_ARGUMENTS = ("rank", "world_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A document taken apart.

    Attributes:
        config: What is a config here.
        storage: What is storage settings here; None where the document has none.
        arguments: What is given to `open_batch_stream` here: `rank`, `world_size`.
    """

    config: BatchStreamConfig
    storage: StorageConfig | None
    arguments: Mapping[str, int]


def convert_document(document: Mapping[str, Any]) -> Converted:
    """Returns a stream's document of o41-training-data as what it is here.

    Args:
        document: The document; keys in snake_case or camelCase, those that are null count as left out.

    Raises:
        ConfigError: A key is unknown, or a value makes no sense here; every problem is named.
    """
    rest = dict(_without_nulls(document))
    taken = {to_snake(key): rest.pop(key) for key in list(rest) if to_snake(key) in ("storage", *_ARGUMENTS)}
    storage = taken.pop("storage", None)
    if isinstance(storage, Mapping):
        named = {to_snake(key): value for key, value in storage.items()}
        storage = {_STORAGE_KEYS.get(key, key): value for key, value in named.items()}
    return Converted(
        config=BatchStreamConfig.model_validate(rest),
        storage=None if storage is None else StorageConfig.model_validate(storage),
        arguments=taken,
    )


def convert_file(path: Path, *, to: Path | None, storage_to: Path | None, as_json: bool) -> None:
    """Write a document of o41-training-data as a config of o41td, or say that it is one already.

    Args:
        path: a config, or a data manifest, which is checked and needs no conversion.
        to: where the config goes, .json or .yaml; None prints it.
        storage_to: where storage settings go, .json, readable by its owner alone; None leaves them out.
        as_json: for programs.

    Raises:
        ConfigError: It cannot be read, or makes no sense.
        UsageProblem: It is a checkpoint, or a file cannot be written.
    """
    document = read_document(path)
    if "splits" in document:
        _tell_manifest(path, as_json=as_json)
        return
    if "stages" not in document:
        raise UsageProblem(
            f"{path} is no config and no manifest. A checkpoint names a position in an order that is another one here:"
            " convert the config, and start it anew"
        )
    try:
        converted = convert_document(document)
    except ConfigError as error:
        raise ConfigError(error.detail, where=str(path), problems=error.problems) from None
    is_elsewhere = to is not None and to.absolute().parent != path.absolute().parent
    config = converted.config.relative_to(os.path.dirname(os.path.abspath(path))) if is_elsewhere else converted.config
    text = _text_of(config, to)
    notes = _notes(converted, storage_to)
    if to is not None:
        _write(to, text, mode=0o666)
    if storage_to is not None and converted.storage is not None:
        if storage_to.suffix.lower() != ".json":
            raise UsageProblem(f"--storage-to {storage_to}: give a name that ends in .json")
        record = converted.storage.secret_record()
        given = {key: value for key, value in record.items() if value not in (None, False, {})}
        _write(storage_to, json.dumps(given, indent=2) + "\n", mode=0o600)
    if as_json:
        print(json.dumps({"kind": "config", "config": _plain(config), "notes": notes}))  # noqa: T201 - for programs
        return
    if to is None:
        print(text, end="")  # noqa: T201 - the config itself, to be piped into a file
    Console(stderr=True, highlight=False, soft_wrap=True).print("\n".join(notes), markup=False)


def _notes(converted: Converted, storage_to: Path | None) -> list[str]:
    """What a person has to know of the conversion."""
    notes = ["The same seed gives another order here, and checkpoints do not carry over."]
    if converted.storage is not None and storage_to is None:
        notes.append("Storage settings are left out: --storage-to FILE.json writes them, and `--storage` reads them.")
    elif converted.storage is not None:
        notes.append(f"Storage settings are in {storage_to}: give it as `--storage`, or to StorageConfig.load.")
    if converted.arguments:
        said = ", ".join(f"{name}={value}" for name, value in converted.arguments.items())
        notes.append(f"Arguments here, not part of the config: open_batch_stream(config, {said}).")
    return notes


def _tell_manifest(path: Path, *, as_json: bool) -> None:
    manifest = read_manifest(str(path))
    splits = {
        name: {"shards": len(split.shards), "records": sum(shard.records for shard in split.shards)}
        for name, split in manifest.splits.items()
    }
    if as_json:
        print(json.dumps({"kind": "manifest", "data_format": manifest.data_format, "splits": splits}))  # noqa: T201
        return
    lines = [f"{path} needs no conversion: a source reads it as it is, {manifest.data_format}."]
    for name, counts in splits.items():
        shards, records = counted_text(counts["shards"], "shard"), counted_text(counts["records"], "record")
        source = f'{{ manifest_uri = "{path}", split = "{name}" }}'
        lines.append(f"  {name}: {shards}, {records}: sources = [{source}]")
    open_console().print("\n".join(lines), markup=False, soft_wrap=True)


def _text_of(config: BatchStreamConfig, to: Path | None) -> str:
    suffix = ".json" if to is None else to.suffix.lower()
    if suffix == ".json":
        return json.dumps(_plain(config), indent=2, ensure_ascii=False) + "\n"
    if suffix in (".yaml", ".yml"):
        import yaml

        text: str = yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)
        return text
    raise UsageProblem(f"--to {to}: give a name that ends in .json or .yaml")


def _plain(config: BatchStreamConfig) -> Any:
    """What was given of a config, as plain values; floats that JSON lacks as text, which a config reads."""
    return _without_nulls(config.model_dump(exclude_unset=True))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: Path, text: str, *, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise UsageProblem(f"{path} is there already; nothing is overwritten") from None
    except OSError as error:
        raise UsageProblem(f"{path} cannot be written: {error.strerror or error}") from None
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UsageProblem(f"{path} cannot be written: {error.strerror or error}") from None
