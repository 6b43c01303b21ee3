"""Errors as plain records, as they cross sockets: a peer can at worst make us raise one of our own classes."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

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
    rebuilt_error,
)

__all__ = ["error_from_record", "error_to_record"]

_CLASSES: dict[str, type[O41Error]] = {
    cls.__name__: cls
    for cls in (
        O41Error,
        ConfigError,
        DataError,
        MissingShardError,
        BadDataBudgetError,
        CorruptDataError,
        ChangedDataError,
        SchemaError,
        ValueRefusedError,
        NodeError,
        WorkerCrashError,
        CheckpointError,
        MemoryBoundError,
        SharedMemoryError,
        StorageError,
        CoordinatorError,
        DatasetConflictError,
        ConnectError,
        StreamClosedError,
    )
}


def error_to_record(error: BaseException) -> dict[str, Any]:
    """Turns an error into a plain record (str, int, list, dict, None) for a socket.

    An exception that is not ours is a bug of ours: it becomes an `O41Error` with its traceback as a note.

    Args:
        error: The error.

    Returns:
        `{"kind", "fields", "notes"}`, ready for msgpack or JSON.
    """
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    if isinstance(error, O41Error):
        kind = next(cls.__name__ for cls in type(error).__mro__ if _CLASSES.get(cls.__name__) is cls)
        return {"kind": kind, "fields": error.fields(), "notes": notes}
    story = "".join(traceback.format_exception(error)).rstrip()
    unexpected = O41Error(
        f"unexpected {type(error).__name__} inside the loader: {error}",
        advice="Please report it with the traceback in this error's notes",
    )
    return {"kind": "O41Error", "fields": unexpected.fields(), "notes": [*notes, f"Traceback in the loader:\n{story}"]}


def error_from_record(record: Mapping[str, Any]) -> O41Error:
    """Builds the error that `error_to_record` described.

    Args:
        record: The record. A kind that this version does not know becomes an `O41Error`, and so does what is no such
            record: whoever reads it is about to tell of a failure, and must not fail itself.

    Returns:
        The error, not raised.
    """
    try:
        return rebuilt_error(_CLASSES.get(record["kind"], O41Error), record["fields"], record.get("notes", ()))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return O41Error("a process of the loader told of an error in a way that cannot be read")
