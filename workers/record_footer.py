"""The one unit that a shard of records is, counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from o41td.fields import FieldPlan
from o41td.projection import ProjectionPlan
from o41td.workers.footer import ShardFooter
from o41td.workers.messages import ReadFooter
from o41td.workers.record_count import count_records

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["read_record_footer"]


def read_record_footer(
    order: ReadFooter,
    fields: Sequence[FieldPlan],
    objects: RemoteObjects | None,
    on_progress: Callable[[], None],
    keys: Sequence[str] = (),
) -> ShardFooter:
    """Returns a shard of records as if it were one row group; none where it has no records.

    `keys` are what nodes want of its records.

    Raises:
        O41Error: As `count_records`.

    Called by: a worker.
    """
    count = count_records(
        order.uri,
        order.encoding,
        fields,
        keys=keys,
        known_rows=order.known_rows,
        source=order.source,
        size_bytes=order.size_bytes,
        etag=order.etag,
        objects=objects,
        max_row_group_bytes=order.max_row_group_bytes,
        on_progress=on_progress,
    )
    rows, text_bytes, size_bytes = (
        np.array([number] if count.num_rows else [], np.int64)
        for number in (count.num_rows, count.text_bytes, count.size_bytes)
    )
    return ShardFooter(
        rows=rows,
        decoded_bytes=text_bytes,
        decoding_bytes=text_bytes,
        compressed_bytes=size_bytes,
        footer_bytes=0,
        size_bytes=count.size_bytes,
        mtime_ns=count.mtime_ns,
        version=count.version,
        plan=ProjectionPlan(fields=(), column_indices=(), num_leaves=0),
    )
