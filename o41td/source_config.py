"""What a user says of where rows come from: `FileSource`, `ManifestSource`, `ShardFile`."""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from o41td.chain_source import ChainSource
from o41td.config_model import ConfigModel, Listed, Name, Text, positive_number, whole_number
from o41td.errors import ConfigError
from o41td.field_config import ProjectedField
from o41td.nodes import Chain, Node

__all__ = ["Encoding", "FileSource", "ManifestSource", "ShardFile", "Source"]

Encoding = Literal["parquet", "jsonl.gz", "msgpack.zstf"]

_COUNT = whole_number(0, 2**63 - 1)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")
_MANIFEST_KEYS = ("manifest_uri", "manifestUri")


class ShardFile(ConfigModel):
    """One shard, with what is known of it.

    Attributes:
        uri: The path or URI, taken as it is: never a glob.
        rows: The number of rows.
        size_bytes: The file's size; another size is refused at open.
        etag: The object's ETag; another one is refused at open.
    """

    shown_name = "shard file"

    uri: Text
    rows: Annotated[int, BeforeValidator(_COUNT)] | None = None
    size_bytes: Annotated[int, BeforeValidator(_COUNT)] | None = None
    etag: Text | None = None


def _file_tag(value: object) -> str | None:
    """Which kind of entry of `files` a value is."""
    if isinstance(value, str | os.PathLike):
        return "<path>"
    return "<ShardFile>" if isinstance(value, ShardFile | Mapping) else None


_File = Annotated[
    Annotated[Text, Tag("<path>")] | Annotated[ShardFile, Tag("<ShardFile>")],
    Discriminator(
        _file_tag,
        custom_error_type="file_kind",
        custom_error_message="give a path, a glob, a URI, or a shard file with a `uri`",
    ),
]


class _SourceKeys(ConfigModel):
    """The keys that every source has."""

    name: Name | None = None
    weight: Annotated[float, BeforeValidator(positive_number)] = 1.0
    fields: Annotated[Sequence[ProjectedField], Listed] = ()

    @field_validator("fields", mode="after")
    @classmethod
    def _check_names(cls, value: Sequence[ProjectedField]) -> Sequence[ProjectedField]:
        refuse_repeats("field", [field.name for field in value])
        return value


class FileSource(_SourceKeys):
    """A list of shard files.

    Attributes:
        files: Paths, globs, URIs or `ShardFile`s, in the order of the line. A single one may stand without a list.
        encoding: The shards' encoding; from the suffix if left out.
        weight: The share in the mix, any finite number above 0; only ratios count.
        name: The name in status, errors and checkpoints.
        fields: Fields that differ for this source, by name; keys left out keep the config's.
    """

    shown_name = "file source"

    files: Annotated[Sequence[_File], Listed, Field(min_length=1)]
    encoding: Encoding | None = None

    @field_validator("files", mode="before")
    @classmethod
    def _check_files(cls, value: object) -> object:
        return [value] if isinstance(value, str | os.PathLike | ShardFile) else value

    def relative_to(self, folder: str) -> Self:
        """This source with relative local paths taken from a folder.

        Args:
            folder: The folder; glob characters in its name stand for themselves.
        """
        files = tuple(
            file.model_copy(update={"uri": joined_path(folder, file.uri)})
            if isinstance(file, ShardFile)
            else joined_path(glob.escape(folder), file)
            for file in self.files
        )
        return self.model_copy(update={"files": files})


class ManifestSource(_SourceKeys):
    """A selection from a data manifest.

    Attributes:
        manifest_uri: The manifest's path or URI.
        split: The split, such as "train".
        curriculum_stages: The manifest's curriculum stages to take, in order; the whole split if left out or empty.
        weight: The share in the mix, any finite number above 0; only ratios count.
        name: The name in status, errors and checkpoints.
        fields: Fields that differ for this source, by name; keys left out keep the config's.
    """

    shown_name = "manifest source"

    manifest_uri: Text
    split: Name
    curriculum_stages: Annotated[Sequence[Name], Listed] | None = None

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        try:
            refuse_repeats("curriculum stage", list(self.curriculum_stages or ()))
        except ValueError as error:
            raise ConfigError(problems=[("curriculum_stages", str(error))]) from None
        return self

    def relative_to(self, folder: str) -> Self:
        """This source with a relative local manifest path taken from a folder."""
        return self.model_copy(update={"manifest_uri": joined_path(folder, self.manifest_uri)})


def _source_tag(value: object) -> str | None:
    """Which kind of source a value is, by its keys."""
    if isinstance(value, Chain | Node):
        return "<ChainSource>"
    if isinstance(value, FileSource | ManifestSource | ChainSource):
        return f"<{type(value).__name__}>"
    if not isinstance(value, Mapping):
        return None
    if value.get("nodes") and not {"files", *_MANIFEST_KEYS} & set(value):
        return "<ChainSource>"
    manifest = any(key in value for key in _MANIFEST_KEYS)
    if manifest and "files" in value:
        return None
    return "<ManifestSource>" if manifest else "<FileSource>" if "files" in value else None


Source = Annotated[
    Annotated[FileSource, Tag("<FileSource>")]
    | Annotated[ManifestSource, Tag("<ManifestSource>")]
    | Annotated[ChainSource, Tag("<ChainSource>")],
    Discriminator(
        _source_tag,
        custom_error_type="source_kind",
        custom_error_message="a source has either `files` (shard files) or `manifest_uri` (a manifest)",
    ),
]
"""A source of a stage: told apart by its keys."""


def joined_path(folder: str, path: str) -> str:
    """A path as seen from a folder; absolute paths and URIs stay as they are."""
    return path if _SCHEME.match(path) else os.path.join(folder, path)


def refuse_repeats(noun: str, names: Sequence[Any]) -> None:
    """Refuses a name that stands twice.

    Args:
        noun: What the names name.
        names: The names in order.

    Raises:
        ValueError: A name stands twice; the text gives it and both places.
    """
    first: dict[Any, int] = {}
    for index, name in enumerate(names):
        if name in first:
            raise ValueError(f"{noun} {name!r} stands twice, at {first[name]} and {index}; give each its own name")
        first[name] = index
