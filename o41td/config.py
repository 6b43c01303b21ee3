"""What a user says of a whole stream: `BatchStreamConfig`, and all config classes under one import.

    BatchStreamConfig
    ├─ fields: ProjectedField …
    └─ stages: Stage …
       ├─ shuffle: Shuffle
       └─ sources: FileSource (files: paths or ShardFile …) | ManifestSource | ChainSource (a chain of nodes)
                   └─ fields: ProjectedField … that differ for this source

Everything is frozen and checked when it is built; a problem is a `ConfigError` that names the key.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from o41td.chain_source import ChainSource
from o41td.config_file import read_document
from o41td.config_model import ConfigModel, Duration, Listed, Share, Size, Text, whole_number
from o41td.errors import ConfigError
from o41td.exclude_config import batch_ranges
from o41td.field_config import ProjectedField
from o41td.fields import DTYPES, FieldPlan
from o41td.path_argument import path_text
from o41td.source_config import FileSource, ManifestSource, ShardFile, joined_path, refuse_repeats
from o41td.stage_config import Shuffle, Stage
from o41td.storage_config import StorageConfig

__all__ = [
    "BatchStreamConfig",
    "ChainSource",
    "FileSource",
    "ManifestSource",
    "ProjectedField",
    "ShardFile",
    "Shuffle",
    "Stage",
    "StorageConfig",
]

_ARGUMENT_OF_OPEN = "is not part of the config; it is an argument: open_batch_stream(config, {})"


class BatchStreamConfig(ConfigModel):
    """A stream of batches: which columns, out of which stages, in which order, with which resources.

    Attributes:
        stages: The curriculum, at least one stage.
        fields: The output columns, at least one.
        seed: 0 to 2^64-1.
        lanes: Independent sub-sequences of each stage; the world size at the first open if left out.
        threads: Worker processes.
        lookahead: Blocks in flight per worker. If left out 2, and where shards are remote, as many as make 16 in all.
        prefetch_batches: Batches assembled ahead in the consumer.
        block_rows: Rows in a slot; from the row size if left out, for a slot of about 8 MiB.
        memory_limit_bytes: What the stream may use; half of what the process may use if left out.
        max_row_group_bytes: Row groups above it are streamed in slices.
        on_bad_data: "raise", or "replace" rows that cannot be had with other rows of their source.
        bad_data_budget: The share of a source's rows, 0 to 1, that may be replaced; more of them are an error.
        quarantine_file: Where replaced rows are written down; a relative path, as the default is one, is taken as any
            other in a config.
        stall_timeout_s: Work given out longer ago than this is given out again.
        cache_dir: A folder for decoded blocks; none if left out.
        cache_limit_bytes: The most that `cache_dir` may hold.
        exclude: Ranges [start, stop) of global batches that every rank passes over.
    """

    key_hints: ClassVar[Mapping[str, str]] = {
        "storage": _ARGUMENT_OF_OPEN.format("storage=StorageConfig(...)"),
        "rank": _ARGUMENT_OF_OPEN.format("rank=..."),
        "world_size": _ARGUMENT_OF_OPEN.format("world_size=..."),
        "engine": _ARGUMENT_OF_OPEN.format('engine="local"'),
        **dict.fromkeys(("workers", "num_workers"), "unknown key; workers are counted by `threads`"),
        **dict.fromkeys(("batch_size", "shuffle", "drop_last", "infinite", "sources"), "is a key of a stage"),
        **dict.fromkeys(("files", "manifest_uri", "encoding", "weight"), "is a key of a stage's source"),
        **dict.fromkeys(("length", "shape", "dtype", "pad"), "is a key of a field"),
    }

    stages: Annotated[Sequence[Stage], Listed, Field(min_length=1)]
    fields: Annotated[Sequence[ProjectedField], Listed, Field(min_length=1)]
    seed: Annotated[int, BeforeValidator(whole_number(0, 2**64 - 1, high_name="2^64-1"))] = 0
    lanes: Annotated[int, BeforeValidator(whole_number(1, 2**16))] | None = None
    threads: Annotated[int, BeforeValidator(whole_number(1, 1024))] = 2
    lookahead: Annotated[int, BeforeValidator(whole_number(1, 1024))] | None = None
    prefetch_batches: Annotated[int, BeforeValidator(whole_number(1, 65536))] = 2
    block_rows: Annotated[int, BeforeValidator(whole_number(1, 2**31 - 1))] | None = None
    memory_limit_bytes: Size | None = None
    max_row_group_bytes: Size = 64 * 2**20
    on_bad_data: Literal["raise", "replace"] = "raise"
    bad_data_budget: Share = 0.05
    quarantine_file: Text = "o41td-quarantine.jsonl"
    stall_timeout_s: Duration = 120.0
    cache_dir: Text | None = None
    cache_limit_bytes: Size | None = None
    exclude: Annotated[tuple[tuple[int, int], ...], BeforeValidator(batch_ranges)] = ()

    @field_validator("fields", mode="after")
    @classmethod
    def _check_field_names(cls, value: Sequence[ProjectedField]) -> Sequence[ProjectedField]:
        refuse_repeats("field", [field.name for field in value])
        problems = [
            (f"[{index}].dtype", f"is missing; give one of {', '.join(DTYPES)}")
            for index, field in enumerate(value)
            if field.dtype is None
        ]
        if problems:
            raise ConfigError(problems=problems)
        return value

    @field_validator("stages", mode="after")
    @classmethod
    def _check_stage_names(cls, value: Sequence[Stage]) -> Sequence[Stage]:
        refuse_repeats("stage", _names_of(value))
        return value

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        problems: list[tuple[str, str]] = []
        for stage_index, stage in enumerate(self.stages):
            for source_index, source in enumerate(stage.sources):
                where = f"stages[{stage_index}].sources[{source_index}].fields"
                problems.extend((f"{where}{path}", text) for path, text in self._override_problems(source.fields))
        if self.cache_limit_bytes is not None and self.cache_dir is None:
            problems.append(("cache_limit_bytes", "limits nothing without `cache_dir`; give both or neither"))
        if self.on_bad_data == "raise":
            problems.extend(
                (name, 'means nothing without `on_bad_data = "replace"`; give both or neither')
                for name in sorted({"bad_data_budget", "quarantine_file"} & self.model_fields_set)
                if getattr(self, name) != type(self).model_fields[name].default
            )
        if problems:
            raise ConfigError(problems=problems)
        return self

    def _override_problems(self, overrides: Sequence[ProjectedField]) -> list[tuple[str, str]]:
        """The problems of a source's own fields, each with its path inside `fields`."""
        own = {field.name: field for field in self.fields}
        problems = []
        for index, override in enumerate(overrides):
            if override.name not in own:
                known = ", ".join(f"`{name}`" for name in own)
                problems.append((f"[{index}].name", f"{override.name!r} is no field of the config, which has {known}"))
                continue
            try:
                own[override.name].overridden_by(override)
            except ConfigError as error:
                problems.extend((f"[{index}].{path}", text) for path, text in error.problems)
        return problems

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The stages' names; one without a name is `stage0`, `stage1`, … by its place."""
        return _names_of(self.stages)

    def source_key(self, stage_index: int, source_index: int) -> str:
        """The name of a source in the whole stream, `stage/source`: the key of `epochs` in a checkpoint."""
        return f"{self.stage_names[stage_index]}/{self.stages[stage_index].source_names[source_index]}"

    def projected_fields(self, stage_index: int, source_index: int) -> tuple[ProjectedField, ...]:
        """The fields as they apply to one source, in the config's order."""
        overrides = {field.name: field for field in self.stages[stage_index].sources[source_index].fields}
        return tuple(
            field.overridden_by(overrides[field.name]) if field.name in overrides else field for field in self.fields
        )

    def field_plans(self, stage_index: int, source_index: int) -> tuple[FieldPlan, ...]:
        """The fields as they apply to one source, as plain data for the other processes."""
        return tuple(field.plan() for field in self.projected_fields(stage_index, source_index))

    def project(self, rows: Any, *, stage: int = 0, source: int = 0) -> dict[str, Any]:
        """Returns rows that come from anywhere as the arrays that training sees of them: for serving, and for tests.

        Args:
            rows: A `pyarrow.RecordBatch` or `Table`, as the source's shards hold them; where the source is a chain of
                nodes, these are run first.
            stage: The number of the stage whose source the rows might be of.
            source: The source's number in that stage.

        Returns:
            By field name a new array [rows, *shape].

        Raises:
            O41Error: There is no such source, rows are not Arrow's, a column is missing, or a value does not fit.
        """
        from o41td.projecting import project  # which brings pyarrow: whoever has rows of Arrow's has it already

        return project(self, rows, stage=stage, source=source)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a config file: `.json`, `.toml`, `.yaml` or `.yml`.

        Relative local paths in it are taken from the file's own folder, wherever the program runs; URIs and absolute
        paths stay as they are.

        Args:
            path: The file.

        Returns:
            The config, its paths absolute.

        Raises:
            ConfigError: There is no such file, it cannot be parsed, or it does not make sense.
        """
        path = path_text(path)
        document = read_document(path)
        if document.get("format") == "o41td-checkpoint":
            raise ConfigError(
                "this is a checkpoint, not a config",
                where=path,
                advice="Give the config. `o41td run CONFIG --resume`, trace, verify and index take a checkpoint",
            )
        if "splits" in document and "stages" not in document:
            raise ConfigError(
                "this is a data manifest, not a config",
                where=path,
                advice="A source of a config names it: `manifest_uri`, and a `split` of it",
            )
        try:
            config = cls.model_validate(document)
        except ConfigError as error:
            problems, detail = error.problems, error.detail
        else:
            return config.relative_to(os.path.dirname(os.path.abspath(path)))
        raise ConfigError(detail, where=path, problems=problems)

    def relative_to(self, folder: str) -> Self:
        """This config with relative local paths taken from a folder."""
        update: dict[str, Any] = {"stages": tuple(stage.relative_to(folder) for stage in self.stages)}
        if self.cache_dir is not None:
            update["cache_dir"] = joined_path(folder, self.cache_dir)
        if self.on_bad_data == "replace":  # else there is none
            update["quarantine_file"] = joined_path(folder, self.quarantine_file)
        return self.model_copy(update=update)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Builds a config from a dict as JSON, TOML, YAML or `to_document` gives it.

        Raises:
            ConfigError: It does not make sense; all problems are named.
        """
        return cls.model_validate(document)

    def to_document(self) -> dict[str, Any]:
        """The config as a new JSON-able dict: snake_case keys, defaults filled in, NaN and infinity as text."""
        document = self.model_dump()
        for stage_index, stage in enumerate(self.stages):
            for source_index, source in enumerate(stage.sources):
                names = {field.name for field in source.fields}
                document["stages"][stage_index]["sources"][source_index]["fields"] = [
                    field.model_dump()
                    for field in self.projected_fields(stage_index, source_index)
                    if field.name in names
                ]
        plain: dict[str, Any] = _finite(document)
        return plain


def _names_of(stages: Sequence[Stage]) -> tuple[str, ...]:
    """The stages' names, by place where they have none."""
    return tuple(stage.name or f"stage{index}" for index, stage in enumerate(stages))


def _finite(value: Any) -> Any:
    """A copy in which floats that JSON lacks are text, as `fill_value_of` reads them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
