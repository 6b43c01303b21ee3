"""A chain on its way into workers: as bytes, by a pickle that only the loader's owner makes and only its workers open.

Nodes are code of the user's program, so they cannot travel as data. They go once, from the process that opens the
stream, over its private socket to a coordinator that hands them on unopened, to workers which that process has
started. Nothing else is ever unpickled: no message of a worker, no file, no checkpoint, nothing of whoever joins a
served loader.

Classes of modules that a worker can import travel by name, those of `__main__` and of notebooks with their code. For
the first a worker takes over the folders that modules are looked for in, behind its own.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgpack

from o41td.errors import ConfigError

if TYPE_CHECKING:
    from o41td.nodes.chain import Chain

__all__ = ["opened", "packed", "plainly_pickled"]


def packed(chain: Chain) -> bytes:
    """Returns a chain as bytes.

    Raises:
        ConfigError: A node holds something that cannot be sent, such as an open file.

    Called by: the process that opens a stream.
    """
    import cloudpickle

    buffer = io.BytesIO()
    # Python 3.11 gives each cached property a lock, with which no class of `__main__` that has one could travel.
    table = ChainMap({cached_property: _reduced}, cloudpickle.Pickler.dispatch_table)
    pickler = type("NodePickler", (cloudpickle.Pickler,), {"dispatch_table": table})
    try:
        pickler(buffer, protocol=5).dump(chain)
    except Exception as error:  # whatever an object's own pickling raises
        raise ConfigError(
            f"the nodes {chain!r} cannot be sent to the workers: {type(error).__name__}: {error}",
            advice="Open files, models and connections in a functools.cached_property, which is made anew there",
        ) from error
    folders = [path or os.getcwd() for path in sys.path]
    return bytes(msgpack.packb([folders, buffer.getvalue()], unicode_errors="surrogateescape"))


def opened(parcel: bytes) -> Chain:
    """Returns the chain of `packed`.

    Raises:
        ConfigError: A module of it is not to be found here, or fails when it is imported.

    Called by: a worker.
    """
    folders, pickled = msgpack.unpackb(parcel, unicode_errors="surrogateescape")
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    try:
        chain: Chain = pickle.loads(pickled)  # noqa: S301 - made by this loader's owner, as said above
    except Exception as error:  # whatever a module raises when it is imported
        raise ConfigError(
            f"a worker cannot build the stream's nodes: {type(error).__name__}: {error}",
            advice="Define nodes in a module that workers can import too, or in the program itself",
        ) from error
    return chain


def _reduced(kept: cached_property[Any]) -> tuple[Any, ...]:
    return _restored, (kept.func, kept.attrname)


def _restored(function: Callable[[Any], Any], name: str | None) -> cached_property[Any]:
    kept = cached_property(function)
    kept.attrname = name
    return kept


def plainly_pickled(value: Any) -> bytes:
    """Returns a value as bytes, for its digest; nobody opens them."""
    return pickle.dumps(value, protocol=5)
