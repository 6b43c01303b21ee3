"""o41td."""

from __future__ import annotations

import json
from collections.abc import Iterator

from o41td import (
    BatchStream,
    BatchStreamConfig,
    Checkpoint,
    FileSource,
    ProjectedField,
    Shuffle,
    Stage,
    open_batch_stream,
    resume_batch_stream,
)
from peers.peer import Job
from peers.workloads import BUFFER_ROWS, Batch

_DTYPES = {"int32": "i32", "int64": "i64", "float32": "f32", "bool": "bool"}


class Stream:
    """A stream as a loader."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Batch]:
        return (batch.arrays() for batch in self._stream)

    def state(self) -> bytes:
        """A checkpoint."""
        return json.dumps(self._stream.state_dict()).encode()


def open_stream(job: Job) -> Stream:
    if job.state is not None:
        return Stream(resume_batch_stream(Checkpoint.from_document(json.loads(job.state))))
    workload = job.workload
    config = BatchStreamConfig(
        fields=[
            ProjectedField(name=column.name, dtype=_DTYPES[column.dtype], length=column.length)
            for column in workload.columns
        ],
        stages=[
            Stage(
                sources=[FileSource(files=job.files)],
                batch_size=workload.batch_size,
                shuffle=Shuffle(buffer_rows=BUFFER_ROWS),
            )
        ],
        threads=2,
        seed=1,
    )
    return Stream(open_batch_stream(config))
