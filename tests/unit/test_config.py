"""Configs: defaults, spellings, refusals with the path to the key, documents."""

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from o41td.config import (
    BatchStreamConfig,
    FileSource,
    ManifestSource,
    ProjectedField,
    ShardFile,
    Shuffle,
    Stage,
)
from o41td.errors import ConfigError
from o41td.fields import FieldPlan
from o41td.job import job_of
from o41td.order.stage import MAX_LANES


def document(**changes):
    """The smallest config as a document, with changes on top."""
    keys = {
        "fields": [{"name": "tokens", "dtype": "i32", "length": 4}],
        "stages": [{"sources": [{"files": ["a.parquet"]}], "batch_size": 2}],
    }
    return {**keys, **changes}


def stage(**changes):
    """The smallest stage as a document, with changes on top."""
    return {"sources": [{"files": ["a.parquet"]}], "batch_size": 2, **changes}


def source(**changes):
    """The smallest config whose only source has changes on top."""
    return document(stages=[stage(sources=[{"files": ["a.parquet"], **changes}])])


def field(**changes):
    """The smallest config whose only field has changes on top."""
    return document(fields=[{"name": "x", "dtype": "i32", **changes}])


def problems_of(call, *arguments, **keys):
    """The problems of the ConfigError that a call raises, by path."""
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **keys)
    assert isinstance(caught.value, ValueError)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return dict(caught.value.problems)


def test_defaults_are_the_documented_ones():
    """What is left out takes the table's default."""
    config = BatchStreamConfig.from_document(document())
    assert config.to_document() == {
        "stages": [
            {
                "sources": [{"name": None, "weight": 1.0, "fields": [], "files": ["a.parquet"], "encoding": None}],
                "batch_size": 2,
                "shuffle": None,
                "infinite": False,
                "drop_last": False,
                "name": None,
            }
        ],
        "fields": [
            {
                "name": "tokens",
                "source": "tokens",
                "dtype": "i32",
                "length": 4,
                "shape": None,
                "pad": 0,
                "null": None,
                "exact": True,
                "source_dtype": None,
            }
        ],
        "seed": 0,
        "lanes": None,
        "threads": 2,
        "lookahead": None,
        "prefetch_batches": 2,
        "block_rows": None,
        "memory_limit_bytes": None,
        "max_row_group_bytes": 67108864,
        "on_bad_data": "raise",
        "bad_data_budget": 0.05,
        "quarantine_file": "o41td-quarantine.jsonl",
        "stall_timeout_s": 120.0,
        "cache_dir": None,
        "cache_limit_bytes": None,
        "exclude": [],
    }


def test_camel_case_and_snake_case_are_the_same():
    """Both spellings of every key with two words give an equal config."""
    snake = {
        "stages": [
            {
                "sources": [
                    {"files": [{"uri": "a", "rows": 3, "size_bytes": 9}]},
                    {"manifest_uri": "m.json", "split": "train", "curriculum_stages": ["easy"]},
                ],
                "batch_size": 2,
                "drop_last": True,
                "shuffle": {"buffer_rows": 8},
            }
        ],
        "fields": [{"name": "x", "dtype": "f32", "source_dtype": "f16"}],
        "prefetch_batches": 3,
        "block_rows": 5,
        "memory_limit_bytes": "2GB",
        "max_row_group_bytes": "1MiB",
        "on_bad_data": "replace",
        "stall_timeout_s": 1,
        "cache_dir": "/c",
        "cache_limit_bytes": 7,
    }

    def camel(value):
        if isinstance(value, dict):
            return {head + "".join(map(str.title, rest)): camel(item) for (head, *rest), item in split(value)}
        return [camel(item) for item in value] if isinstance(value, list) else value

    def split(mapping):
        return [(key.split("_"), item) for key, item in mapping.items()]

    assert "memoryLimitBytes" in camel(snake)
    one, other = BatchStreamConfig.from_document(snake), BatchStreamConfig.from_document(camel(snake))
    assert one.to_document() == other.to_document()
    assert one.memory_limit_bytes == 2_000_000_000
    assert one.max_row_group_bytes == 2**20


def test_the_example_of_the_design_builds():
    """Python objects nest; lists become tuples."""
    config = BatchStreamConfig(
        fields=[ProjectedField(name="tokens", source="input_ids", dtype="i32", length=2048, pad=0)],
        stages=[
            Stage(
                sources=[
                    FileSource(files=["data/*.parquet"], weight=3.0),
                    ManifestSource(manifest_uri="m.json", split="train", curriculum_stages=["easy"]),
                ],
                batch_size=32,
                shuffle=Shuffle(buffer_rows=4096),
            )
        ],
        seed=1,
    )
    assert config.stages[0].sources[0].files == ("data/*.parquet",)
    assert config.stages[0].sources[1].curriculum_stages == ("easy",)
    assert config.field_plans(0, 0) == (
        FieldPlan(name="tokens", source="input_ids", dtype="i32", shape=(2048,), pad=0),
    )


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**63, 2**64 - 1, np.uint64(2**64 - 1)])
def test_seeds_that_work(seed):
    """All of 0 to 2^64-1 are seeds."""
    assert BatchStreamConfig.from_document(document(seed=seed)).seed == int(seed)


@pytest.mark.parametrize(
    ("changed", "path", "told"),
    [
        (document(seed=-1), "seed", "-1 is out of range; give an integer from 0 to 2^64-1"),
        (document(seed=2**64), "seed", "18446744073709551616 is out of range"),
        (document(seed=True), "seed", "True is not an integer"),
        (document(seed=1.0), "seed", "1.0 is not an integer"),
        (document(seed="1"), "seed", "'1' is not an integer"),
        (document(seed=None), "seed", "null is not an integer"),
        (document(stages=[]), "stages", "is empty"),
        (document(fields=[]), "fields", "is empty"),
        (document(stages=None), "stages", "null is not a list"),
        (document(stages={"a": 1}), "stages", "is not a list"),
        (document(stages="easy"), "stages", "'easy' is not a list"),
        (document(stages=[7]), "stages[0]", "7 is not a table; give `sources`, `batch_size`"),
        (document(lanes=0), "lanes", "0 is out of range"),
        (document(lanes=65537), "lanes", "65537 is out of range; give an integer from 1 to 65536"),
        (document(threads=0), "threads", "0 is out of range; give an integer of 1 or more"),
        (document(threads=True), "threads", "True is not an integer"),
        (document(threads=2.0), "threads", "2.0 is not an integer"),
        (document(threads=1025), "threads", "1025 is out of range; give an integer from 1 to 1024"),
        (document(lookahead=0), "lookahead", "0 is out of range"),
        (document(prefetch_batches=-1), "prefetch_batches", "-1 is out of range"),
        (document(prefetchBatches=-1), "prefetchBatches", "-1 is out of range"),
        (document(block_rows=0), "block_rows", "0 is out of range"),
        (document(memory_limit_bytes="2G"), "memory_limit_bytes", '"2GB" (powers of 1000)'),
        (document(memory_limit_bytes=0), "memory_limit_bytes", "1 byte or more"),
        (document(memory_limit_bytes=True), "memory_limit_bytes", "True is not a size"),
        (document(memory_limit_bytes="plenty"), "memory_limit_bytes", "write it like"),
        (document(max_row_group_bytes=1.5), "max_row_group_bytes", "1.5 is not a size"),
        (document(on_bad_data="skip"), "on_bad_data", "'skip' is not allowed; give 'raise' or 'replace'"),
        (document(stall_timeout_s=0), "stall_timeout_s", "0 is not allowed"),
        (document(stall_timeout_s="2"), "stall_timeout_s", "'2' is not a number"),
        (document(cache_limit_bytes=5), "cache_limit_bytes", "without `cache_dir`"),
        (document(cache_dir=""), "cache_dir", "not empty"),
        (document(batch_sise=1), "batch_sise", "unknown key"),
        (document(treads=1), "treads", "did you mean `threads`?"),
        (document(num_workers=1), "num_workers", "workers are counted by `threads`"),
        (document(batchSize=1), "batchSize", "is a key of a stage"),
        (document(files=["a"]), "files", "is a key of a stage's source"),
        (document(length=8), "length", "is a key of a field"),
        (document(stages={"batch_size": 1}), "stages", "give a list; in TOML each begins with [[stages]]"),
        (document(prefetchBatch=1), "prefetchBatch", "did you mean `prefetchBatches`?"),
        (document(storage={}), "storage", "open_batch_stream(config, storage=StorageConfig(...))"),
        (document(rank=0), "rank", "open_batch_stream(config, rank=...)"),
        (document(worldSize=2), "worldSize", "open_batch_stream(config, world_size=...)"),
        (document(stages=[stage(batch_size=0)]), "stages[0].batch_size", "0 is out of range"),
        (document(stages=[stage(batch_size=True)]), "stages[0].batch_size", "True is not an integer"),
        (document(stages=[stage(batch_size="8")]), "stages[0].batch_size", "'8' is not an integer"),
        (document(stages=[{"sources": [{"files": ["a"]}]}]), "stages[0].batch_size", "is missing"),
        (document(stages=[stage(batchSize=2)]), "stages[0].batch_size", "given twice"),
        (document(stages=[stage(sources=[])]), "stages[0].sources", "is empty"),
        (document(stages=[stage(infinite=1)]), "stages[0].infinite", "1 is not a bool; give true or false"),
        (document(stages=[stage(dropLast="no")]), "stages[0].dropLast", "'no' is not a bool"),
        (document(stages=[stage(shuffle=5)]), "stages[0].shuffle", "5 is not a table; give `buffer_rows`"),
        (document(stages=[stage(shuffle=True)]), "stages[0].shuffle", "True is not a table"),
        (document(stages=[stage(shuffle={})]), "stages[0].shuffle.buffer_rows", "is missing"),
        (document(stages=[stage(shuffle={"buffer_rows": 0})]), "stages[0].shuffle.buffer_rows", "0 is out of range"),
        (document(stages=[stage(shuffle={"bufferRows": 2**32})]), "stages[0].shuffle.bufferRows", "1 to 2^32-1"),
        (document(stages=[stage(name="a"), stage(name="a")]), "stages", "stage 'a' stands twice, at 0 and 1"),
        (document(stages=[stage(name="stage1"), stage()]), "stages", "stage 'stage1' stands twice"),
        (document(stages=[stage(name="")]), "stages[0].name", "not a name"),
        (document(stages=[stage(name="a\nb")]), "stages[0].name", "not a name"),
        (document(stages=[stage(sources=["a"])]), "stages[0].sources[0]", "either `files`"),
        (document(stages=[stage(sources=[{}])]), "stages[0].sources[0]", "either `files`"),
        (document(stages=[stage(sources=[{"file": ["a"]}])]), "stages[0].sources[0]", "either `files`"),
        (source(manifestUri="m", split="s"), "stages[0].sources[0]", "either `files`"),
        (source(weight=0), "stages[0].sources[0].weight", "0 is not allowed; give a finite number above 0"),
        (source(weight=-1.5), "stages[0].sources[0].weight", "-1.5 is not allowed"),
        (source(weight=math.nan), "stages[0].sources[0].weight", "nan is not allowed"),
        (source(weight=math.inf), "stages[0].sources[0].weight", "inf is not allowed"),
        (source(weight=10**400), "stages[0].sources[0].weight", "is not allowed"),
        (source(weight=True), "stages[0].sources[0].weight", "True is not a number"),
        (source(weight="1"), "stages[0].sources[0].weight", "'1' is not a number"),
        (source(wieght=1), "stages[0].sources[0].wieght", "did you mean `weight`?"),
        (source(files=[]), "stages[0].sources[0].files", "is empty"),
        (source(files=[3]), "stages[0].sources[0].files[0]", "a path, a glob, a URI"),
        (source(files=["a", ""]), "stages[0].sources[0].files[1]", "not empty"),
        (source(files=["a", {"uri": "b", "rows": -1}]), "stages[0].sources[0].files[1].rows", "-1 is out of range"),
        (source(files=[{"uri": "a", "urii": "b"}]), "stages[0].sources[0].files[0].urii", "did you mean `uri`?"),
        (source(encoding="csv"), "stages[0].sources[0].encoding", "give 'parquet', 'jsonl.gz' or 'msgpack.zstf'"),
        (
            document(stages=[stage(sources=[{"manifest_uri": "m"}])]),
            "stages[0].sources[0].split",
            "is missing",
        ),
        (
            document(stages=[stage(sources=[{"manifestUri": "m", "split": "s", "curriculumStages": ["a", "a"]}])]),
            "stages[0].sources[0].curriculum_stages",
            "'a' stands twice",
        ),
        (
            document(stages=[stage(sources=[{"files": "a", "name": "s"}, {"files": "b", "name": "s"}])]),
            "stages[0].sources",
            "source 's' stands twice",
        ),
        (field(dtype="int32"), "fields[0].dtype", "did you mean `i32`?"),
        (field(dtype="u8"), "fields[0].dtype", "give one of i32, i64, f32, f64, bool"),
        (field(dtype=None), "fields[0].dtype", "is missing; give one of i32, i64, f32, f64, bool"),
        (field(dtype=["i32"]), "fields[0].dtype", "is not a dtype"),
        (field(source_dtype="u128"), "fields[0].source_dtype", "'u128' is not a dtype"),
        (field(sourceDtype="uint16"), "fields[0].sourceDtype", "did you mean `u16`?"),
        (field(length=0), "fields[0].length", "0 is out of range"),
        (field(length=-3), "fields[0].length", "-3 is out of range"),
        (field(length=True), "fields[0].length", "True is not an integer"),
        (field(shape=[2, 0]), "fields[0].shape[1]", "0 is out of range"),
        (field(shape=[-2]), "fields[0].shape[0]", "-2 is out of range"),
        (field(shape=[2.0]), "fields[0].shape[0]", "2.0 is not an integer"),
        (field(shape=3), "fields[0].shape", "or `length` for one axis"),
        (field(shape=[2**20, 2**20]), "fields[0].shape", "too many"),
        (field(length=2, shape=[2]), "fields[0]", "`length` and `shape` are both given"),
        (field(pad=2**31), "fields[0].pad", "does not fit i32"),
        (field(pad=0.5), "fields[0].pad", "not an integer"),
        (field(pad=True), "fields[0].pad", "not a number"),
        (field(dtype="f32", null=1e39), "fields[0].null", "too large for f32"),
        (field(dtype="bool", null=2), "fields[0].null", "not a bool"),
        (field(exact="no"), "fields[0].exact", "not a bool"),
        (field(name=""), "fields[0].name", "not a name"),
        (field(source=""), "fields[0].source", "not a name"),
        (document(fields=[{"dtype": "i32"}]), "fields[0].name", "is missing"),
        (
            document(fields=[{"name": "x", "dtype": "i32"}, {"name": "x", "dtype": "f32"}]),
            "fields",
            "field 'x' stands twice, at 0 and 1",
        ),
    ],
)
def test_senseless_values_are_refused_by_path(changed, path, told):
    """One wrong value gives one problem, with the path as typed, the value, and what is allowed."""
    problems = problems_of(BatchStreamConfig.from_document, changed)
    assert list(problems) == [path]
    assert told in problems[path]


def test_all_problems_are_listed_at_once():
    """Problems in different places come in one error."""
    bad = document(
        seed=-1, sed=2, stages=[stage(batch_size=0, sources=[{"files": ["a"]}, {"files": ["b"], "weight": 0}])]
    )
    assert set(problems_of(BatchStreamConfig.from_document, bad)) == {
        "seed",
        "sed",
        "stages[0].batch_size",
        "stages[0].sources[1].weight",
    }


@pytest.mark.parametrize(
    ("cls", "keys", "path"),
    [
        (Stage, {"sources": [FileSource(files=["a"])], "batch_size": 0}, "batch_size"),
        (FileSource, {"files": ["a"], "weight": 0}, "weight"),
        (ManifestSource, {"manifest_uri": "m", "split": ""}, "split"),
        (ShardFile, {"uri": "a", "rows": True}, "rows"),
        (ProjectedField, {"name": "x", "dtype": "i33"}, "dtype"),
        (Shuffle, {"buffer_rows": 0}, "buffer_rows"),
        (BatchStreamConfig, {"stages": [], "fields": [ProjectedField(name="x", dtype="i32")]}, "stages"),
    ],
)
def test_direct_construction_raises_the_same_error(cls, keys, path):
    """A class built in Python refuses just as a file does."""
    assert list(problems_of(cls, **keys)) == [path]
    assert list(problems_of(cls.model_validate, keys)) == [path]


def test_values_without_names_are_refused_in_words_of_the_class():
    """What was called is named, and one of its keys; copies and pickles go on without."""
    with pytest.raises(TypeError, match=r"ProjectedField takes its values by name, such as name="):
        ProjectedField("tokens", "i32")
    with pytest.raises(TypeError, match=r"FileSource takes its values by name, such as files="):
        FileSource("a.parquet")


def test_errors_hold_no_union_noise():
    """A problem inside a source or a shard file is told as if there were only that class."""
    with pytest.raises(ConfigError) as caught:
        BatchStreamConfig.from_document(source(files=[{"uri": 3}], weight=0))
    text = str(caught.value)
    assert "`stages[0].sources[0].files[0].uri`: 3 is not text" in text
    for noise in ("FileSource", "ManifestSource", "ShardFile", "union", "pydantic", "<", "Value error"):
        assert noise not in text


def test_fill_values_take_the_fields_own_kind():
    """Pads default to 0 in the dtype, and NaN can be written as text."""
    assert ProjectedField(name="x", dtype="bool").pad is False
    assert type(ProjectedField(name="x", dtype="f32").pad) is float
    assert type(ProjectedField(name="x", dtype="i64", pad=3.0).pad) is int
    assert math.isnan(ProjectedField(name="x", dtype="f64", null="nan").null or 0)


def test_shapes():
    """A scalar has no axes, a length is one, a shape is as given."""
    assert ProjectedField(name="x", dtype="i32").plan().shape == ()
    assert ProjectedField(name="x", dtype="i32", length=7).plan().shape == (7,)
    assert ProjectedField(name="x", dtype="i32", shape=[2, 3]).plan().shape == (2, 3)


def test_files_may_be_one_path_objects_or_shard_files():
    """A single file needs no list; paths become text."""
    assert FileSource(files="a.parquet").files == ("a.parquet",)
    assert FileSource(files=[Path("a"), ShardFile(uri="b", rows=3)]).files == ("a", ShardFile(uri="b", rows=3))


def test_a_sources_own_fields_replace_by_name():
    """Keys that the source's field sets are its own, all others stay the config's, order too."""
    config = BatchStreamConfig(
        fields=[
            ProjectedField(name="tokens", source="input_ids", dtype="i32", length=4, pad=-1),
            ProjectedField(name="label", dtype="f32"),
        ],
        stages=[
            Stage(
                batch_size=2,
                sources=[
                    FileSource(files=["a"]),
                    FileSource(
                        files=["b"],
                        fields=[
                            ProjectedField(name="label", source="y", dtype="f32", null=0.5),
                            ProjectedField(name="tokens", source="ids", dtype="i32"),
                        ],
                    ),
                ],
            )
        ],
    )
    tokens = {"name": "tokens", "dtype": "i32", "shape": (4,), "pad": -1}
    assert config.field_plans(0, 0) == (
        FieldPlan(source="input_ids", **tokens),
        FieldPlan(name="label", source="label", dtype="f32", pad=0.0),
    )
    assert config.field_plans(0, 1) == (
        FieldPlan(source="ids", **tokens),
        FieldPlan(name="label", source="y", dtype="f32", pad=0.0, null=0.5),
    )
    again = BatchStreamConfig.from_document(json.loads(json.dumps(config.to_document())))
    assert again.field_plans(0, 1) == config.field_plans(0, 1)
    assert again.to_document() == config.to_document()


@pytest.mark.parametrize(
    ("override", "path", "told"),
    [
        ({"name": "y", "dtype": "i32"}, "name", "'y' is no field of the config, which has `x`"),
        ({"name": "x", "dtype": "i64", "length": 4}, "dtype", "'i64' differs from field `x`, which is 'i32'"),
        ({"name": "x", "dtype": "i32", "length": 5}, "shape", "[5] differs from field `x`, which is [4]"),
        ({"name": "x", "dtype": "i32", "shape": [2, 2]}, "shape", "[2, 2] differs from field `x`"),
        ({"name": "x", "pad": 0.5}, "pad", "0.5 is not an integer; an i32 field needs one"),
        ({"name": "x", "null": [1]}, "null", "[1] is not a number; an i32 field needs one"),
    ],
)
def test_an_override_keeps_the_output(override, path, told):
    """Another output dtype, shape or name for one source is refused."""
    changed = {**source(fields=[override]), "fields": [{"name": "x", "dtype": "i32", "length": 4}]}
    problems = problems_of(BatchStreamConfig.from_document, changed)
    assert list(problems) == [f"stages[0].sources[0].fields[0].{path}"]
    assert told in next(iter(problems.values()))


def test_an_override_keeps_what_it_leaves_out():
    """Another column for one source is its name and `source`; a fill value is checked against the config's dtype."""
    base = {"name": "x", "dtype": "f32", "length": 4, "pad": -1, "exact": False}
    overrides = [{"name": "x", "source": "y"}], [ProjectedField(name="x", null="nan")]
    sources = [{"files": ["a"], "name": str(place), "fields": fields} for place, fields in enumerate(overrides)]
    config = BatchStreamConfig.from_document(document(fields=[base], stages=[stage(sources=sources)]))
    kept = {"name": "x", "dtype": "f32", "shape": (4,), "pad": -1.0, "exact": False}
    assert config.field_plans(0, 0) == (FieldPlan(source="y", **kept),)
    (plan,) = config.field_plans(0, 1)
    assert (plan.source, plan.pad, plan.dtype, math.isnan(plan.null)) == ("x", -1.0, "f32", True)
    assert BatchStreamConfig.from_document(config.to_document()).field_plans(0, 0) == config.field_plans(0, 0)


@pytest.mark.parametrize("field", [{"name": "x"}, {"name": "x", "dtype": None}, ProjectedField(name="x")])
def test_a_field_of_the_config_has_a_dtype(field):
    """Only an override may leave it out."""
    assert problems_of(BatchStreamConfig.from_document, document(fields=[field])) == {
        "fields[0].dtype": "is missing; give one of i32, i64, f32, f64, bool"
    }


def test_an_override_that_stands_twice_is_refused():
    """A source names each field at most once."""
    twice = [{"name": "tokens", "dtype": "i32"}, {"name": "tokens", "dtype": "i32"}]
    assert list(problems_of(BatchStreamConfig.from_document, source(fields=twice))) == ["stages[0].sources[0].fields"]


def test_names_by_place():
    """Stages and sources without a name get one from their place; a source's key has both."""
    config = BatchStreamConfig.from_document(
        document(stages=[stage(), stage(name="hard", sources=[{"files": ["a"]}, {"files": ["b"], "name": "web"}])])
    )
    assert config.stage_names == ("stage0", "hard")
    assert config.stages[1].source_names == ("source0", "web")
    assert config.source_key(1, 1) == "hard/web"
    assert config.source_key(0, 0) == "stage0/source0"


def test_documents_are_new_and_survive_json():
    """A document gives the same config again after JSON, infinities too, and changing it changes nothing."""
    config = BatchStreamConfig.from_document(
        document(fields=[{"name": "x", "dtype": "f32", "pad": "-inf", "null": "nan"}], cache_dir="c", seed=2**64 - 1)
    )
    first = config.to_document()
    text = json.dumps(first, allow_nan=False)
    assert BatchStreamConfig.from_document(json.loads(text)).to_document() == first
    first["stages"][0]["batch_size"] = 99
    assert config.to_document()["stages"][0]["batch_size"] == 2


def test_configs_are_frozen_and_picklable():
    """Nothing can be set on a config, and a pickle gives an equal one."""
    config = BatchStreamConfig.from_document(document())
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3
    assert pickle.loads(pickle.dumps(config)) == config


def test_what_is_imported_before_a_loader_starts_is_light():
    """A config, and what opens a stream of it, bring no pyarrow, no parsers, and no NumPy until the loader starts."""
    heavy = "('numpy', 'pyarrow', 'yaml', 'tomllib', 'fsspec')"
    code = f"import sys, o41td.config, o41td.opening; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_coordinator_side_modules_import_no_pydantic():
    """errors, fields, checkpoint and rank_info are plain."""
    code = (
        "import sys, o41td.errors, o41td.fields, o41td.rank_info, o41td.checkpoint, o41td.host_memory;"
        "print('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_keys_of_a_config_are_listed_once() -> None:
    """A document of another kind is refused without the same list behind each of its keys."""
    with pytest.raises(ConfigError) as caught:
        BatchStreamConfig.from_document(document(zzzz=1, yyyy=2))
    assert [path for path, _text in caught.value.problems] == ["zzzz", "yyyy"]
    assert str(caught.value).count("the keys of a config are") == 1


def test_a_world_of_more_ranks_than_an_order_has_lanes_is_refused() -> None:
    """Where `lanes` is left to the world size, one that is too large is an error that names the key to set."""
    config = BatchStreamConfig.from_document(document())
    assert job_of(config, lanes=MAX_LANES).lanes == MAX_LANES == 65536
    assert "lanes" in problems_of(job_of, config, lanes=MAX_LANES + 1)
