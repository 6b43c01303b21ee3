"""Everything that crosses a socket: one named tuple a message, msgpack arrays on the wire, never a pickle.

A record is encoded as ``[tag, *fields in order]`` (`message_codec`). The tag is the class's place in `MESSAGE_TYPES`,
so both ends must be of one version: a loader starts its own processes from its own package, which makes that true by
construction, and whoever else calls looks at the loader's `PROTOCOL` first. What such a caller says and hears is
docs/protocol.md, which the C header repeats.

Named tuples, since all three kinds of process import these at their start, and two dozen frozen dataclasses take 30 ms
to make. Half-open ranges throughout. Arrays travel as ``bytes`` of little-endian numbers, whose dtype the field's
comment states. `storage` may hold credentials: a message with them does not show them.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

__all__ = [
    "CONSUMER_TYPES",
    "MESSAGE_TYPES",
    "PROTOCOL",
    "AttachArena",
    "BatchesGathered",
    "BatchesReady",
    "BlockDecoded",
    "BlockFailed",
    "BlockFetched",
    "CacheUsed",
    "CountGoesOn",
    "DecodeBlock",
    "FooterFailed",
    "FooterRead",
    "JoinLoader",
    "LoaderFailed",
    "LoaderJoined",
    "LoaderNotice",
    "LoaderOpened",
    "LoaderPlanned",
    "MayHoldSlots",
    "Message",
    "OpenLoader",
    "OpenProgress",
    "PieceBegun",
    "ReadFooter",
    "ResolveFailed",
    "ResolveSource",
    "ResultsUsed",
    "ServeFrom",
    "SlotsHeld",
    "SourceResolved",
    "StatsReply",
    "StatsRequest",
    "StorageUsed",
    "StreamEnded",
    "StreamFailed",
    "WorkerReady",
]


def _shown_without_storage(message: Any) -> str:
    """What `repr` shows of a message that may hold credentials."""
    fields = zip(message._fields, message, strict=True)
    shown = [f"{name}={'...' if name == 'storage' and value is not None else repr(value)}" for name, value in fields]
    return f"{type(message).__name__}({', '.join(shown)})"


# ---- worker -> coordinator, coordinator -> worker ------------------------------------------------------------------


class WorkerReady(NamedTuple):
    """A worker has imported what it needs and takes orders."""

    pid: int


class ResolveSource(NamedTuple):
    """Find out which shards a source has, some of which are remote; `source` is a SourceJob record."""

    task_id: int
    source: dict[str, Any]
    storage: dict[str, Any] | None

    def __repr__(self) -> str:
        return _shown_without_storage(self)


class SourceResolved(NamedTuple):
    """The shards of a source, as a SourceShards record."""

    task_id: int
    shards: dict[str, Any]


class ResolveFailed(NamedTuple):
    """A source's shards cannot be found; `error` is an error record."""

    task_id: int
    error: dict[str, Any]


class ReadFooter(NamedTuple):
    """Read one shard's footer and check its schema against the fields of a source.

    A shard of records has no footer: its records are counted, unless `known_rows` spares that, and the first is looked
    at. A record of more than an eighth of `max_row_group_bytes` is refused.

    Where the source is a chain of nodes, `chain` is it, packed, and the fields are checked against what comes of a few
    rows; or it is empty, where that is done with another shard. `columns` are those that it wants, None is all.
    """

    task_id: int
    source: str
    uri: str
    encoding: str
    known_rows: int | None
    max_row_group_bytes: int
    size_bytes: int | None  # of a remote shard, when it was listed
    etag: str | None
    fields: list[dict[str, Any]]  # FieldPlan records
    chain: bytes | None
    columns: list[str] | None
    storage: dict[str, Any] | None

    def __repr__(self) -> str:
        return _shown_without_storage(self)


class FooterRead(NamedTuple):
    """A shard's units: rows, and bytes of the projected columns as in `SourceIndex`, each int64 little-endian."""

    task_id: int
    rows: bytes
    decoded_bytes: bytes
    decoding_bytes: bytes
    compressed_bytes: bytes
    footer_bytes: int
    size_bytes: int
    mtime_ns: int
    version: str


class CountGoesOn(NamedTuple):
    """A worker still counts a shard's records: large shards take longer than a stalled worker is given."""

    task_id: int


class FooterFailed(NamedTuple):
    """A footer could not be read, or its schema does not fit; `error` is an error record."""

    task_id: int
    error: dict[str, Any]


class AttachArena(NamedTuple):
    """Map the arena whose descriptor rides along; `sources` holds the FieldPlan records of each source slot.

    `chains` are sources' nodes, packed, and `columns` those of their shards that these want; None of a source without
    nodes, and where they want all. Where `cluster` is the address of a Ray cluster, blocks are decoded there, those of
    a source on nodes that have the resource in `places`.
    """

    layout: dict[str, Any]
    sources: list[list[dict[str, Any]]]
    source_names: list[str]
    encodings: list[str]
    chains: list[bytes | None]
    columns: list[list[str] | None]
    max_row_group_bytes: int
    max_held_units: int
    cache_dir: str | None
    cache_limit_bytes: int | None
    storage: dict[str, Any] | None
    places: list[str | None]
    cluster: str | None

    def __repr__(self) -> str:
        return _shown_without_storage(self)


class DecodeBlock(NamedTuple):
    """Decode a block of `num_rows` rows into a slot.

    Each piece is ``[number, uri, size_bytes, mtime_ns, shard_rows, row_group, group_rows, decoding_bytes, shard_row,
    row_start, row_stop, block_row, version]``: rows [row_start, row_stop) of a row group, whose first row is row
    `shard_row` of its shard, are the block's from `block_row` on. The slot has the block's rows in their
    `LeavingOrder`, whose three numbers are `leaving`; in the block's own order where that is None. `careful` asks for a
    `PieceBegun` with the piece's number before each.
    """

    block_id: int
    source: int
    slot: int
    num_rows: int
    leaving: list[int] | None
    careful: bool
    pieces: list[list[Any]]


class PieceBegun(NamedTuple):
    """A careful worker begins a piece of a block."""

    block_id: int
    piece: int


class CacheUsed(NamedTuple):
    """What the block cache did for a block, sent before the block's own answer: units found and not, bytes, files.

    `failure` says why nothing is kept from now on, once.
    """

    block_id: int
    hits: int
    misses: int
    read_bytes: int
    written_bytes: int
    evicted_files: int
    evicted_bytes: int
    broken_files: int
    failure: str | None


class BlockFetched(NamedTuple):
    """What a block has had stores asked for, sent before the block's own answer; `wait_s` is what it has waited."""

    block_id: int
    requests: int
    retries: int
    requested_bytes: int
    received_bytes: int
    wait_s: float


class ResultsUsed(NamedTuple):
    """What the stores of a source's nodes did for a block, sent before the block's own answer: results found and not.

    `failure` says why a result could not be kept, once.
    """

    block_id: int
    hits: int
    misses: int
    failure: str | None


class BlockDecoded(NamedTuple):
    """The slot holds the block's rows. Times are seconds spent fetching, decoding and projecting: wall clock, then CPU.

    But for rows that cannot be had: `bad_rows[i]` are rows of the block (int64 little-endian, ascending), for which
    `bad_errors[i]` is the error record.
    """

    block_id: int
    rows: int
    read_bytes: int
    fetch_s: float
    decode_s: float
    project_s: float
    fetch_cpu_s: float
    decode_cpu_s: float
    project_cpu_s: float
    bad_rows: list[bytes]
    bad_errors: list[dict[str, Any]]


class BlockFailed(NamedTuple):
    """None of the block's rows can be had, which are told as in `BlockDecoded`."""

    block_id: int
    bad_rows: list[bytes]
    bad_errors: list[dict[str, Any]]


class StorageUsed(NamedTuple):
    """What a worker has asked of object stores since it last told, and what is under way.

    One that `waits` for a store is not stuck, whatever it takes: its store is asked again and again.
    """

    requests: int
    retries: int
    renewals: int
    requested_bytes: int
    received_bytes: int
    in_flight: int
    last_fault: str | None
    waits: bool


# ---- consumer -> coordinator ---------------------------------------------------------------------------------------


class OpenLoader(NamedTuple):
    """The first message of a loader's owner: what to stream.

    `job` is a StreamJob record. `known_sources` are source index records from an earlier coordinator of the same stream
    (then nothing is read again), `expected_sources` what a checkpoint says the shards must be. `config` is the config's
    document where `ranks` are served to whoever joins by the loader's name; None where the owner is the one rank.
    """

    job: dict[str, Any]
    storage: dict[str, Any] | None
    ranks: list[int]
    world_size: int
    known_sources: list[dict[str, Any]] | None
    expected_sources: list[dict[str, Any]] | None
    plan_only: bool
    name: str
    config: dict[str, Any] | None

    def __repr__(self) -> str:
        return _shown_without_storage(self)


class JoinLoader(NamedTuple):
    """The first message of a trainer that connects to a served loader: which rank it is."""

    rank: int


class ServeFrom(NamedTuple):
    """Serve a rank from a place on, by the next round's first batch.

    `position` is its number in the stage, `global_batch` its number among the batches of all stages.
    """

    generation: int
    rank: int
    world_size: int
    stage: int
    position: int
    global_batch: int


class BatchesGathered(NamedTuple):
    """The first `gathered` batches of this generation are out of the arena.

    `delivered` of them were handed out; `batches`, `rows` and `wait_s` are the stream's, over all generations.
    """

    generation: int
    gathered: int
    delivered: int
    batches: int
    rows: int
    wait_s: float
    dropped_rows: int


class SlotsHeld(NamedTuple):
    """Slots in which batches lie that were lent: those of before are not held any more. Of a private loader alone.

    It goes before the `BatchesGathered` or `ServeFrom` from which on nothing else would keep their rows there.
    """

    slots: list[int]


class StatsRequest(NamedTuple):
    """Ask for `StatsReply`."""

    request_id: int


# ---- coordinator -> consumer ---------------------------------------------------------------------------------------


class LoaderJoined(NamedTuple):
    """The rank is the trainer's, who is told what is streamed: a config's document and a StreamJob record."""

    config: dict[str, Any]
    job: dict[str, Any]
    world_size: int


class OpenProgress(NamedTuple):
    """Footers read so far, of how many."""

    done: int
    total: int


class LoaderOpened(NamedTuple):
    """The index is complete and the arena is reserved; its descriptor rides along."""

    layout: dict[str, Any]
    sources: list[dict[str, Any]]
    bound: dict[str, Any]
    arena_kind: str
    notices: list[str]


class LoaderPlanned(NamedTuple):
    """The index is complete, and what a loader would take is known; nothing was reserved (`plan_only`)."""

    sources: list[dict[str, Any]]
    bound: dict[str, Any]
    notices: list[str]


class LoaderFailed(NamedTuple):
    """The loader cannot be opened, or cannot go on at all."""

    error: dict[str, Any]


class BatchesReady(NamedTuple):
    """Consecutive batches whose rows are all in the arena.

    Batch i is the stage's batch `numbers[i]` with order digest `digests[i]`; `releases[i]` asks for a
    `BatchesGathered` behind it. Its `num_rows[i]` rows are those from arena row `first_rows[i]` on; where that is -1,
    `rows` holds them (int64 little-endian), behind those of all such batches before it.
    """

    generation: int
    stage: int
    numbers: list[int]
    num_rows: list[int]
    digests: list[int]
    releases: list[bool]
    first_rows: list[int]
    rows: bytes


class MayHoldSlots(NamedTuple):
    """In how many slots batches may lie that are lent, at once, for each stage. Of a private loader alone."""

    of_stages: list[int]


class StreamEnded(NamedTuple):
    """Behind the batches sent so far the stage is over; `dropped_rows` is this rank's share of the rows left out."""

    generation: int
    dropped_rows: int


class StreamFailed(NamedTuple):
    """Behind the batches sent so far the stream cannot go on."""

    generation: int
    error: dict[str, Any]


class LoaderNotice(NamedTuple):
    """Something happened that the owner's log should tell: a worker was replaced, say; a warning is for everybody."""

    text: str
    is_warning: bool = False


class StatsReply(NamedTuple):
    """Live figures of a loader."""

    request_id: int
    stats: dict[str, Any]


Message = (
    WorkerReady
    | ResolveSource
    | SourceResolved
    | ResolveFailed
    | ReadFooter
    | FooterRead
    | CountGoesOn
    | FooterFailed
    | AttachArena
    | DecodeBlock
    | PieceBegun
    | CacheUsed
    | BlockFetched
    | ResultsUsed
    | BlockDecoded
    | BlockFailed
    | StorageUsed
    | OpenLoader
    | JoinLoader
    | ServeFrom
    | BatchesGathered
    | SlotsHeld
    | StatsRequest
    | LoaderJoined
    | OpenProgress
    | LoaderOpened
    | LoaderPlanned
    | LoaderFailed
    | BatchesReady
    | MayHoldSlots
    | StreamEnded
    | StreamFailed
    | LoaderNotice
    | StatsReply
)
"""Any message."""

CONSUMER_TYPES: tuple[type[Message], ...] = (
    JoinLoader,
    ServeFrom,
    BatchesGathered,
    StatsRequest,
    LoaderJoined,
    OpenProgress,
    LoaderOpened,
    LoaderFailed,
    BatchesReady,
    StreamEnded,
    StreamFailed,
    LoaderNotice,
    StatsReply,
)
"""What a trainer and a served loader say to each other: first, so that no other message moves their tags."""

MESSAGE_TYPES: tuple[type[Message], ...] = (
    *CONSUMER_TYPES,
    WorkerReady,
    ResolveSource,
    SourceResolved,
    ResolveFailed,
    ReadFooter,
    FooterRead,
    CountGoesOn,
    FooterFailed,
    AttachArena,
    DecodeBlock,
    PieceBegun,
    CacheUsed,
    BlockFetched,
    ResultsUsed,
    BlockDecoded,
    BlockFailed,
    StorageUsed,
    OpenLoader,
    LoaderPlanned,
    MayHoldSlots,
    SlotsHeld,
)
PROTOCOL = f"{crc32(repr([(kind.__name__, kind._fields) for kind in CONSUMER_TYPES]).encode()):08x}"
"""Tells these messages from another version's: a checksum of all fields, so that nobody has to keep count."""
