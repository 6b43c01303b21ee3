"""Errors: messages, builtins they also are, pickles, records."""

import copy
import errno
import json
import pickle

import msgpack
import numpy as np
import pytest

from o41td import errors
from o41td.error_records import error_from_record, error_to_record
from o41td.errors import (
    BadDataBudgetError,
    ChangedDataError,
    CheckpointError,
    ConfigError,
    ConnectError,
    CoordinatorError,
    CorruptDataError,
    DataError,
    DatasetConflictError,
    MemoryBoundError,
    MissingShardError,
    NodeError,
    O41Error,
    SchemaError,
    SharedMemoryError,
    StorageError,
    StreamClosedError,
    ValueRefusedError,
    WorkerCrashError,
)

PLACE = {"source": "web", "shard": "/d/a.parquet", "row_group": 3, "row": 17, "column": "ids"}
EXAMPLES = [
    O41Error("something broke", where="here", advice="Mend it"),
    ConfigError("this config does not make sense", where="my.toml", problems=[("seed", "is odd"), ("x", "is new")]),
    DataError("bad", **PLACE),
    MissingShardError(**PLACE),
    BadDataBudgetError("9 of the 100 rows of this source cannot be had", source="web"),
    CorruptDataError("the footer is cut short", **PLACE),
    ChangedDataError("another size", **PLACE),
    SchemaError("no such column", **PLACE),
    ValueRefusedError("does not fit i32", value=2**31, **PLACE),
    NodeError("no such key", node="tok", exception="tokens:LostKey", row_stop=32, **PLACE),
    WorkerCrashError("killed three workers", signal=9, exit_code=None, attempts=3, **PLACE),
    CheckpointError("does not fit", path="c.json", differences=[("seed", 1, 2), ("stages[0].name", None, "easy")]),
    MemoryBoundError("too large", needed_bytes=3 * 2**20, limit_bytes=2**20, terms={"arena": 3 * 2**20}, advice="Less"),
    SharedMemoryError("full", where="/dev/shm", needed_bytes=100, free_bytes=10),
    StorageError("refused", uri="s3://b/k"),
    CoordinatorError("it died", log_tail="boom\n"),
    DatasetConflictError("there is another manifest", where="m.json"),
    ConnectError("there is no loader x", advice="Start it"),
    StreamClosedError(),
]


def test_every_class_is_among_the_examples():
    """No class is left out of the tests below."""
    assert {type(example).__name__ for example in EXAMPLES} == {n for n in errors.__all__ if n.endswith("Error")}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "carry",
    [
        lambda error: pickle.loads(pickle.dumps(error)),
        copy.copy,
        copy.deepcopy,
        lambda error: error_from_record(msgpack.unpackb(msgpack.packb(error_to_record(error)))),
        lambda error: error_from_record(json.loads(json.dumps(error_to_record(error)))),
    ],
    ids=["pickle", "copy", "deepcopy", "msgpack", "json"],
)
def test_an_error_arrives_whole(error, carry):
    """Class, message, fields and notes survive every way an error travels."""
    noted = copy.copy(error)
    noted.add_note("from worker 3")
    arrived = carry(noted)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.fields() == error.fields()
    assert arrived.__notes__ == ["from worker 3"]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_can_be_made_of_a_text_alone(error):
    """PyTorch brings a worker's error home as its class made of a text: by the keyword `message`, if it has that."""
    kind = type(error)
    assert "Caught in worker 0" in str(kind("Caught in worker 0"))
    assert not hasattr(kind, "message")


def test_the_message_says_what_where_and_what_to_do():
    """A data error's paragraph names the place in full."""
    error = CorruptDataError("the page's checksum is wrong", **PLACE)
    assert str(error) == (
        "the page's checksum is wrong (source 'web', shard /d/a.parquet, row group 3, row 17, column 'ids'). "
        "Replace the shard, or take it out of the source."
    )


def test_several_problems_stand_on_lines_of_their_own():
    """A config error lists each problem with its path."""
    error = ConfigError("this config does not make sense", problems=[("a.b", "is 0"), ("c", "did you mean `d`?")])
    assert str(error) == "this config does not make sense, 2 problems:\n  `a.b`: is 0.\n  `c`: did you mean `d`?"
    error = ConfigError("this path does not make sense", problems=[("path", "is none")], advice="Give a path")
    assert str(error) == "this path does not make sense: `path`: is none. Give a path."


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ConfigError("x"), ValueError),
        (MissingShardError(), FileNotFoundError),
        (ValueRefusedError("x"), ValueError),
        (CheckpointError("x"), ValueError),
        (MemoryBoundError("x"), MemoryError),
        (SharedMemoryError("x"), OSError),
        (StorageError("x"), OSError),
    ],
)
def test_builtins_catch_our_errors(error, builtin):
    """What a user would catch without knowing us works."""
    assert isinstance(error, builtin)
    assert isinstance(error, O41Error)


def test_a_missing_shard_looks_like_any_missing_file():
    """The errno and filename are set."""
    error = MissingShardError(shard="/d/a.parquet")
    assert (error.errno, error.filename) == (errno.ENOENT, "/d/a.parquet")


def test_fields_are_plain_values():
    """NumPy integers become ints, so that a record can be packed."""
    record = error_to_record(DataError("x", row=np.int64(5), row_group=np.int32(1)))
    assert record["fields"]["row"] == 5
    assert type(record["fields"]["row"]) is int
    assert msgpack.packb(record)


def test_an_unexpected_exception_travels_with_its_traceback():
    """A bug of ours arrives as an O41Error whose note is the traceback."""

    def broken():
        return {}["absent"]

    with pytest.raises(KeyError) as caught:
        broken()
    arrived = error_from_record(error_to_record(caught.value))
    assert type(arrived) is O41Error
    assert "unexpected KeyError" in str(arrived)
    assert "in broken" in arrived.__notes__[-1]


def test_a_kind_of_a_newer_version_is_still_an_error():
    """An unknown kind becomes the root class with the detail, and unknown fields are left out."""
    arrived = error_from_record({"kind": "WarpCoreError", "fields": {"detail": "hot", "flux": 3}})
    assert type(arrived) is O41Error
    assert str(arrived) == "hot."


def test_a_users_own_subclass_travels_as_ours():
    """A record names only classes of this package."""

    class Private(CorruptDataError):
        pass

    assert type(error_from_record(error_to_record(Private("x")))) is CorruptDataError


def test_many_differences_are_cut():
    """A refusal with 25 differing fields names 20 and counts the rest."""
    error = CheckpointError("does not fit", differences=[(f"k{i}", i, i + 1) for i in range(25)])
    assert "`k19` was 19, is 20" in str(error)
    assert "k20" not in str(error)
    assert str(error).endswith("and 5 more.")


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": "DataError"},
        {"kind": ["DataError"], "fields": {"detail": "x"}},
        {"kind": "DataError", "fields": {"detail": "x", "row": "seven"}},
        {"kind": "DataError", "fields": {"detail": "x", "row": float("inf")}},
        {"kind": "ConfigError", "fields": {"problems": [1]}},
        {"kind": "DataError", "fields": 7},
        {"kind": "DataError", "fields": {"detail": "x"}, "notes": [7]},
        [],
    ],
)
def test_a_record_that_is_none_is_an_error_as_well(record):
    """Who reads it is about to tell of a failure, and does: with the root class, and no other exception."""
    error = error_from_record(record)
    assert type(error) is O41Error
    assert "cannot be read" in str(error)


def test_a_record_names_no_class_but_ours():
    """A kind that is not of the tree, whatever it is called elsewhere, becomes the root class."""
    assert type(error_from_record({"kind": "SystemExit", "fields": {"detail": "x"}})) is O41Error


def test_sizes_in_errors_read_as_in_reports():
    """Small ones exactly, larger ones in the unit that fits: as `plan` and `status` print them."""
    told = MemoryBoundError("too much", needed_bytes=5 << 30, limit_bytes=900, terms={"plan": 1536})
    assert "(needed 5.0 GiB, limit 900 B, plan 1.5 KiB)" in str(told)
