"""`BatchStream`: batches of one rank, the cursor, and everything that moves it.

The stream owns the cursor and counts a batch the moment it is handed out. Each `next()` of a rank is one round:
`world_size` global batches, one of them this rank's, so any rank's cursor is every rank's cursor. What the feed has
gathered ahead is not in the cursor; moving (`seek`, `advance`) drops it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from o41td.batch import Batch
from o41td.batch_buffers import StageBuffers
from o41td.checkpoint import Checkpoint
from o41td.checkpointing import CheckpointMaker, carried_digest
from o41td.config import BatchStreamConfig
from o41td.counted import counted_text
from o41td.cursor import Cursor
from o41td.errors import ConfigError, O41Error, StreamClosedError
from o41td.feed import BatchFeed
from o41td.gatherer import AnyLoader, Gatherer, Place, Restart
from o41td.index import SourceIndex
from o41td.job import StreamJob
from o41td.order_lookup import OrderLookup
from o41td.path_argument import path_text
from o41td.phases import profile_is_wanted, profile_text
from o41td.stream_log import StreamLog

__all__ = ["BatchStream", "StreamStart"]

_DIGEST_MASK = (1 << 64) - 1
_PROFILE_ANSWER_S = 1.0
"""How long a loader may take to tell its figures when a stream that is profiled is closed."""


class StreamStart:
    """What a stream begins with: the checkpoint's counts, or nothing yet."""

    def __init__(self, cursor: Cursor | None = None, order_digest: int = 0) -> None:
        """A fresh stream begins in stage 0 with no batch taken."""
        self.cursor = Cursor() if cursor is None else cursor
        self.order_digest = order_digest


class BatchStream:
    """An iterator of `Batch`es of one rank; `open_batch_stream`, `resume_batch_stream` and `connect` make it.

    Called by: one thread at a time; a second thread inside `next()` is refused, not given a mixed batch.
    """

    def __init__(
        self,
        *,
        config: BatchStreamConfig,
        job: StreamJob,
        loader: AnyLoader,
        restart: Restart,
        rank: int,
        world_size: int,
        start: StreamStart,
        is_fresh: bool,
    ) -> None:
        """Takes over `loader` and begins to gather; `restart` makes a new loader in place of a dead one.

        Raises:
            ConfigError: A stage has no batch for every rank.
        """
        self._job = job
        self._rank = rank
        self._world_size = world_size
        self._served_from = start.cursor
        self._rounds_taken = 0
        self._excluded = job.excluded
        self._order_digest = start.order_digest
        self._dropped_rows = 0
        self._num_batches = 0
        self._rows = 0
        self._closed = False
        self._inside: int | None = None  # the thread inside next(); no lock, which an interrupt could leave locked
        self._pid = os.getpid()
        self._opened_s = time.monotonic()
        self._lookup = OrderLookup(job, loader.sources)
        self._sources = self._lookup.sources
        self._checkpoints = CheckpointMaker(config, job, self._lookup, rank=rank, world_size=world_size)
        self.notices = loader.notices
        log = StreamLog(rank, world_size)
        for notice in loader.notices:
            log.warning("%s", notice)
        gatherer = Gatherer(
            loader,
            restart=restart,
            buffers=StageBuffers(job, self._lookup.batch_rows),
            prefetch_batches=job.prefetch_batches,
            rank=rank,
            world_size=world_size,
            stall_timeout_s=job.stall_timeout_s,
        )
        self._feed = BatchFeed(gatherer, log, stall_timeout_s=job.stall_timeout_s)
        self._finalizer = weakref.finalize(self, self._feed.close)
        _LIVE_FEEDS.add(self._feed)
        try:
            if is_fresh:
                self._refuse_empty_stages()
            else:
                self._checkpoints.refuse_impossible(start.cursor)
            self._serve()
        except BaseException:
            self.close()
            raise

    # ---- batches ---------------------------------------------------------------------------------------------------

    def next(self) -> Batch | None:
        """Returns the next batch of this rank, None at the end of a finite stage.

        Blocks: until the batch is in memory; a dead worker or coordinator is replaced meanwhile.

        Raises:
            O41Error: The batch cannot be had; asking again raises the same, and a checkpoint points behind the last
                batch.
        """
        self._check_usable()
        thread = threading.get_ident()
        self._refuse_thread(thread)
        self._inside = thread
        try:
            gathered = self._feed.take(self._rounds_taken)
            if isinstance(gathered, int):
                self._dropped_rows = gathered
                return None
            batch = Batch(
                arrays=gathered.arrays,
                num_rows=gathered.num_rows,
                stage=gathered.stage,
                number=gathered.number,
                batch_index=self._global_offset + gathered.number,
                locate=self._lookup.coordinates,
                key_of=self._lookup.key,
            )
            self._refuse_thread(thread)
        finally:
            self._inside = None
        # No call from here on: a KeyboardInterrupt before counts nothing, and there is no place for one behind.
        self._order_digest = (self._order_digest + gathered.digest) & _DIGEST_MASK
        self._rounds_taken += 1
        self._num_batches += 1
        self._rows += gathered.num_rows
        return batch

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns an Arrow C stream of the batches from here to the stage's end, as polars, DuckDB and others read it.

        Each batch that is read counts as handed out, as with `next()`, and its memory stays for as long as the reader
        keeps it; each axis behind the first is a fixed size list. A stage that is infinite never ends. Readers that
        take all at once (`polars.DataFrame(stream)`) hold the whole stage in memory; others go batch by batch
        (`pyarrow.RecordBatchReader.from_stream(stream)`).

        Args:
            requested_schema: A capsule of an ArrowSchema that the reader would rather have; pyarrow casts to it.
        """
        from o41td.arrow_export import stream_capsule

        def next_arrays() -> dict[str, NDArray[Any]] | None:
            batch = self.next()
            return None if batch is None else batch.arrays()

        self._check_usable()
        fields = self._job.stages[self._cursor.stage].sources[0].fields
        return stream_capsule(fields, next_arrays, requested_schema)

    @property
    def _cursor(self) -> Cursor:
        """Where the stream is: what it was served from, and the rounds taken since (counted apart: the hot path)."""
        start = self._served_from.batches
        return self._served_from.moved(self._after(start, self._rounds_taken) - start)

    def _after(self, batches: int, rounds: int) -> int:
        """The global batch behind so many rounds from `batches` on; what is excluded is passed over."""
        return self._excluded.after(batches, rounds * self._world_size)

    # ---- moving ----------------------------------------------------------------------------------------------------

    def advance(self, stage: int | str) -> None:
        """Goes to another stage from the next batch on; a stage visited before goes on where it was left.

        All ranks must call it after the same number of batches. A no-op for the current stage.

        Raises:
            ConfigError: There is no such stage.
        """
        self._check_usable()
        number = self._stage_number(stage)
        if number != self._cursor.stage:
            self._move_to(self._cursor.advanced(number))

    def seek(self, batches: int) -> None:
        """Goes to global batch `batches`: anywhere in the history, or on in its last stage. 0 is the beginning.

        Raises:
            ConfigError: It is negative, or beyond the end of a finite stage.
        """
        cursor = self._cursor.sought(_count_of("batches", batches))
        self._refuse_beyond_end(cursor)
        self._move_to(cursor)

    def skip(self, rounds: int) -> None:
        """Passes over `rounds` batches of every rank, excluded ones not counted; all ranks must call it alike.

        Raises:
            ConfigError: It is negative, or goes beyond the end of a finite stage.
        """
        self.seek(self._after(self._cursor.batches, _count_of("rounds", rounds)))

    def _move_to(self, cursor: Cursor) -> None:
        self._check_usable()
        self._served_from = cursor
        self._rounds_taken = 0
        self._dropped_rows = 0
        self._serve()

    def _serve(self) -> None:
        cursor = self._served_from
        position = cursor.stage_position(cursor.stage)
        self._global_offset = cursor.batches - position
        self._feed.serve_from(Place(cursor.stage, position, cursor.batches, self._excluded))

    def _stage_number(self, stage: int | str) -> int:
        names = [job.name for job in self._job.stages]
        if isinstance(stage, str) and stage in names:
            return names.index(stage)
        if isinstance(stage, int | np.integer) and not isinstance(stage, bool) and 0 <= stage < len(names):
            return int(stage)
        raise ConfigError(
            "there is no such stage",
            problems=[("stage", f"{stage!r} is none of 0 to {len(names) - 1}, {', '.join(names)}")],
        )

    def _refuse_beyond_end(self, cursor: Cursor) -> None:
        total = self._lookup.order(cursor.stage).num_batches
        position = cursor.stage_position(cursor.stage)
        if total is not None and position > total:
            raise ConfigError(
                "this position does not make sense",
                problems=[
                    (
                        "batches",
                        f"{cursor.batches} would be batch {position} of stage {cursor.stage}, which has {total}",
                    )
                ],
            )

    def _refuse_empty_stages(self) -> None:
        for stage, job in enumerate(self._job.stages):
            order = self._lookup.order(stage)
            if order.num_batches is not None and order.num_batches < self._world_size:
                raise ConfigError(
                    f"stage {job.name!r} has {counted_text(order.total_rows, 'row')}, which make "
                    f"{counted_text(order.num_batches, 'batch', 'batches')} of {job.batch_size} in "
                    f"{counted_text(self._job.lanes, 'lane')}: too few for {counted_text(self._world_size, 'rank')}",
                    advice="Use fewer ranks or lanes, a smaller batch_size, or more data; drop_last=False helps",
                )
        if self.num_rounds() == 0:
            raise ConfigError(
                f"`exclude` leaves stage {self._job.stages[0].name!r} fewer batches than there are ranks",
                advice="Exclude fewer batches, or begin with another stage",
            )

    # ---- state -----------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Returns where the stream is: everything handed out so far counts as consumed."""
        return self._checkpoints.checkpoint_at(self._cursor, self._order_digest)

    def state_dict(self) -> dict[str, Any]:
        """Returns the checkpoint as a plain JSON-able dict."""
        return self.checkpoint().to_document()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to where `state_dict` was taken, also by another rank or, with the same `lanes`, world size.

        Raises:
            CheckpointError: It is of another stream; the fields that differ are named.
        """
        self._check_usable()
        checkpoint = Checkpoint.from_document(state)
        self._checkpoints.refuse_other_stream(checkpoint)
        cursor = self._checkpoints.cursor_of(checkpoint)
        self._order_digest = carried_digest(checkpoint, self._rank, self._world_size)
        self._move_to(cursor)

    @property
    def order_digest(self) -> int:
        """Additive 64-bit digest of which row came where, over everything this rank was handed."""
        return self._order_digest

    @property
    def dropped_rows(self) -> int:
        """Rows that batching left out on this rank; 0 until the end of a finite stage was reached."""
        return self._dropped_rows

    @property
    def excluded_batches(self) -> int:
        """Global batches passed over so far because the config excludes them."""
        return self._excluded.count(0, self._cursor.batches)

    @property
    def sources(self) -> Sequence[SourceIndex]:
        """The sources of the current stage: `sources[s].shards[k].uri` names what `Batch.coordinates` numbers."""
        return self._sources[self._cursor.stage]

    @property
    def stage(self) -> int:
        """The current stage."""
        return self._cursor.stage

    def sources_of(self, stage: int | str) -> Sequence[SourceIndex]:
        """The sources of any stage, by its number or name.

        Raises:
            ConfigError: There is no such stage.
        """
        return self._sources[self._stage_number(stage)]

    def num_rounds(self, stage: int | str | None = None) -> int | None:
        """Batches that this rank still gets from a stage (the current one by default) if it goes on there now.

        None if it has no end.

        Raises:
            ConfigError: There is no such stage.
        """
        cursor = self._cursor
        number = cursor.stage if stage is None else self._stage_number(stage)
        position = cursor.stage_position(number)
        excluded = self._excluded.shifted(cursor.batches - position)
        return self._lookup.order(number).rounds(position, self._world_size, excluded)

    def stats(self) -> dict[str, Any]:
        """Returns live figures of the loader (docs/observing.md has the keys).

        Blocks: until the coordinator answers, milliseconds; at most 5 s, or until one that died is replaced.

        Raises:
            CoordinatorError: It does not answer.
        """
        self._check_usable()
        return self._figures(self._feed.stats())

    def _figures(self, of_loader: dict[str, Any]) -> dict[str, Any]:
        """A loader's figures with those of this stream beside them."""
        ahead_s, in_wait_s = self._feed.gather_s
        return of_loader | {
            "batches": self._num_batches,
            "rows": self._rows,
            "wait_s": self._feed.wait_s,
            "gather_s": ahead_s + in_wait_s,
            "gather_in_wait_s": in_wait_s,
            "dropped_rows": self._dropped_rows,
            "excluded_batches": self.excluded_batches,
            "coordinator_restarts": self._feed.coordinator_restarts,
        }

    # ---- looking up ------------------------------------------------------------------------------------------------

    def coordinates(self, batch_index: int) -> NDArray[Any]:
        """Returns where the rows of a global batch come from, `COORDINATE_DTYPE` [rows]; nothing is read."""
        stage, number = self._cursor.locate(_count_of("batch_index", batch_index))
        total = self._lookup.order(stage).num_batches
        if total is not None and number >= total:
            problem = f"{batch_index} would be batch {number} of stage {stage}, which has {total}"
            raise ConfigError("there is no such batch", problems=[("batch_index", problem)])
        return self._lookup.coordinates(stage, number)

    def find(self, shard: str | os.PathLike[str], row: int, *, epochs: int = 1) -> list[int]:
        """Returns the global batches in which a row comes, ascending: `coordinates` the other way round.

        Nothing is read. Told are those of the stream's history, and those ahead in its current stage, whichever rank
        they go to. Rows that batching drops are in none.

        Args:
            shard: The shard's path or URI, or an end of it that only one shard has.
            row: The row's number in the shard.
            epochs: How many epochs of the row's sources to look through, where a stage is infinite.

        Raises:
            ConfigError: No source has such a shard, or the shard no such row.
        """
        number = _count_of("row", row)
        if _count_of("epochs", epochs) < 1:
            raise ConfigError(
                "this number does not make sense", problems=[("epochs", "0 epochs hold no row; give 1 or more")]
            )
        comes = self._lookup.find(path_text(shard, "shard"), number, epochs=epochs)
        batches = {self._cursor.global_batch_of(stage, batch) for stage, batch in comes}
        return sorted(batch for batch in batches if batch is not None)

    # ---- end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends a private loader and all its processes, leaves a served one. Idempotent; batches handed out stay good.

        With `O41TD_PROFILE=1` in the environment it says on standard error where the time went.

        Blocks: milliseconds.
        """
        is_first = not self._closed
        self._closed = True
        if os.getpid() == self._pid:
            if is_first and profile_is_wanted():
                self._print_profile()
            self._finalizer()

    def _print_profile(self) -> None:
        with contextlib.suppress(O41Error, OSError):  # of a stream that failed, or with standard error closed
            figures = self._figures(self._feed.stats(_PROFILE_ANSWER_S))
            whose = f"rank {self._rank} of {self._world_size}"
            print(profile_text(figures, whose, time.monotonic() - self._opened_s), file=sys.stderr, flush=True)  # noqa: T201

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _refuse_thread(self, thread: int) -> None:
        if self._inside not in (None, thread):
            raise StreamClosedError(
                "another thread is inside next() of this stream",
                advice="Use a stream from one thread at a time, or open one stream per thread",
            )

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise StreamClosedError(
                "this stream was opened in another process; a fork does not carry it over",
                advice="Open the stream in the process that reads it",
            )
        if self._closed:
            raise StreamClosedError


def _count_of(name: str, value: object) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 0:
        return int(value)
    raise ConfigError("this number does not make sense", problems=[(name, f"{value!r} is not an integer of 0 or more")])


_LIVE_FEEDS: weakref.WeakSet[BatchFeed] = weakref.WeakSet()


def _let_go_after_fork() -> None:
    for feed in list(_LIVE_FEEDS):
        with contextlib.suppress(OSError):
            feed.close_after_fork()


os.register_at_fork(after_in_child=_let_go_after_fork)
