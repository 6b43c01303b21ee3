"""How far away stores are: some small requests and one large one of each, in a process that `o41td check` starts.

``python -P -m o41td.workers.store_sample`` reads a JSON request from stdin and writes one JSON line for each object.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from o41td.errors import O41Error
from o41td.workers.child_storage import objects_of
from o41td.workers.object_store import ObjectInfo
from o41td.workers.ranges import ByteRange
from o41td.workers.remote_objects import RemoteObjects

__all__ = ["look_at_store"]

_REQUESTS = 5
_LARGE_BYTES = 8 << 20
_GIVE_UP_AFTER_S = 30.0


def look_at_store(objects: RemoteObjects, uri: str, info: ObjectInfo) -> dict[str, Any]:
    """Returns what one object tells of its store.

    Args:
        objects: Where it is read.
        uri: The object, one of the largest.
        info: What it is.

    Returns:
        `latency_s`: the median of some requests for a byte; `read_s` and `read_bytes`: of one large request, by one
        connection; `credentials_left_s`: for how long the credentials are good, where they tell.

    Raises:
        O41Error: The store does not give it.

    Blocks: on the store.
    """
    objects.read(uri, ByteRange(0, 1), info)  # connects
    taken = []
    for _ in range(_REQUESTS):
        begin_s = time.perf_counter()
        objects.read(uri, ByteRange(0, 1), info)
        taken.append(time.perf_counter() - begin_s)
    large = ByteRange(0, min(_LARGE_BYTES, info.size_bytes))
    begin_s = time.perf_counter()
    objects.read(uri, large, info)
    read_s = time.perf_counter() - begin_s
    storage = objects.storage
    left_s = storage.result_of(storage.start(storage.credentials_left_s(uri)))
    return {
        "latency_s": statistics.median(taken),
        "read_s": read_s,
        "read_bytes": large.num_bytes,
        "credentials_left_s": left_s,
    }


def _answer(objects: RemoteObjects, asked: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return look_at_store(objects, asked["uri"], ObjectInfo(asked["size_bytes"], asked["etag"]))
    except O41Error as error:
        return {"error": str(error)}


def _main() -> None:
    request = json.load(sys.stdin)
    objects = objects_of(request["storage"], [each["uri"] for each in request["objects"]])
    assert objects is not None, "there are stores to look at"
    settings = objects.storage.settings
    objects.storage.settings = replace(settings, give_up_after_s=min(_GIVE_UP_AFTER_S, settings.give_up_after_s))
    for asked in request["objects"]:
        sys.stdout.write(json.dumps(_answer(objects, asked)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
