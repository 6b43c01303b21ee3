"""What the parts of a loader take in memory, each measured by itself, as the comment at it says.

The sum of them is `o41td.memory`'s; tests/process/test_memory_bound.py holds it against what processes take.
"""

__all__ = [
    "ANNOUNCED_ROW_BYTES",
    "CACHE_WORK_BYTES",
    "COORDINATOR_BYTES",
    "DECODE_SPARE_BYTES",
    "FACTS_BYTES",
    "FETCH_WASTE",
    "FORKED_WORKER_BYTES",
    "FORKING_COORDINATOR_BYTES",
    "HTTP_WORKER_BYTES",
    "LIBRARIES_BYTES",
    "MAX_OPEN_SHARDS",
    "MAX_RECORD_FEEDS",
    "PAGE_BYTES",
    "PARSED_FOOTER_FACTOR",
    "PLANNED_BATCH_BYTES",
    "PLANNED_ROW_BYTES",
    "PLAN_SHARD_BYTES",
    "PLAN_UNIT_BYTES",
    "PLAN_WINDOW_ROW_BYTES",
    "RANK_SHARD_BYTES",
    "READ_AHEAD_BYTES",
    "READ_AHEAD_MAX_BYTES",
    "READ_AHEAD_MIN_BYTES",
    "RECORD_FETCH_BYTES",
    "RECORD_READ_AHEAD_BYTES",
    "RECORD_VALUES_FACTOR",
    "RECORD_WORK_BYTES",
    "S3_WORKER_BYTES",
    "STREAM_BATCH_BYTES",
    "STREAM_COLUMN_BYTES",
    "STREAM_SPARE_BYTES",
    "TAILS_BYTES",
    "WORKER_BYTES",
    "read_ahead_bytes",
    "stream_bytes",
]

MIB = 1 << 20

# Proportional set size (/proc/PID/smaps_rollup) on Linux 6.18, CPython 3.11, numpy 2.4, pyarrow 26, of one coordinator
# beside n workers that read 1000 rows: 82, 107 and 157 MiB together for n = 1, 2, 4. So: one copy of the libraries, and
# each process's own pages; with 4 MiB for other versions of them. Workers forked by their coordinator share its pages:
# 76, 80, 88 and 102 MiB for n = 1, 2, 4, 8, and 8 MiB more each where they have decoded all kinds of pages.
LIBRARIES_BYTES = 38 * MIB
COORDINATOR_BYTES = 23 * MIB
WORKER_BYTES = 26 * MIB
FORKING_COORDINATOR_BYTES = 37 * MIB
FORKED_WORKER_BYTES = 10 * MIB

# What follows was measured as growth of one process's own pages while it reads row groups of one kind over and over,
# 1 ms between two looks; kinds: lists of random, of few and of equal int32, of bool, images (fixed lists of float32),
# and 60 and 200 plain columns. "Decoding bytes" are values, offsets and levels, as `workers.footer` counts them.

# Decoding W bytes whole out of F fetched peaked at 291, 192, 131, 155, 240, 277, 273, 26 MiB for (W, F) = (124, 61),
# (124, 0), (66, 9), (63, 33), (99, 43), (138, 4), (80, 54), (7, 5): never above twice W (builders grow by doubling, and
# the allocator keeps what they grew out of) and F, with a page and a dictionary of each column.
PAGE_BYTES = 1 * MIB

STREAM_BATCH_BYTES = 8 * MIB
"""Decoding bytes of the rows that a stream over a large row group decodes at once."""

# One stream took 25 to 40 MiB on lists of the four kinds and on images, four of them 51 to 75: twice a batch each, and
# the allocator's share once. A column that is read keeps its input buffer, a page and a dictionary: 1.73 MiB each of 60
# columns of random numbers while nothing is decoded, and no more than about three times what there is of it.
STREAM_COLUMN_BYTES = 2 * MIB
STREAM_SPARE_BYTES = 24 * MIB

FACTS_BYTES = 4 * MIB
"""Footers that a worker keeps parsed, by their size in the file."""

MAX_OPEN_SHARDS = 8
"""Shards that a worker keeps open; the footer of each is in memory, whether kept or not."""

# Parsed they took 8.0 times their size for 8 000 row groups of a column, 7.3 for 20 of 200 columns.
PARSED_FOOTER_FACTOR = 9

# Whatever else: the values of a slice that are looked at one by one, a table about to be freed.
DECODE_SPARE_BYTES = 12 * MIB

# Of remote shards that are read forwards: at 50 ms a request, 8 MiB on their way are 160 MB/s.
READ_AHEAD_BYTES = 16 * MIB
READ_AHEAD_MAX_BYTES = 8 * MIB
READ_AHEAD_MIN_BYTES = 1 * MIB

# A worker that has read from S3 has 38 MiB more of its own (s3fs, botocore's models), one that has read by HTTP 14.
S3_WORKER_BYTES = 42 * MIB
HTTP_WORKER_BYTES = 18 * MIB

TAILS_BYTES = 4 * MIB
"""Ends of remote shards that a worker keeps, with their footers as they are in the files."""

FETCH_WASTE = 1.05
"""What is fetched ahead, by what is needed of it: gaps between column chunks are closed up to so much."""

CACHE_WORK_BYTES = 12 * MIB
"""What a worker takes more where it keeps blocks on disk: a part that is read, one that is written, two libraries."""

RECORD_WORK_BYTES = 8 * MIB
"""What a worker takes to read records of any shard: the text at hand, and the Python values of some of it."""

RECORD_VALUES_FACTOR = 3
"""What a byte of a large record's text takes beside that: half of its peak, like all that is decoded whole.

Records of 3 to 7 MB took 4 bytes (lists cut to little), 7 (floats, small integers), 10 (nulls between), 15 (short lists
in a list)."""

RECORD_FETCH_BYTES = 1 * MIB

RECORD_READ_AHEAD_BYTES = 4 * MIB
"""What is on its way of a remote shard of records, ahead of where it is read."""
MAX_RECORD_FEEDS = 24
"""Places at which a worker reads shards of records at most: three in each shard that is open."""

# Of a unit in the index: row count, first row, shard, row group, its place in an epoch's permutation, in two processes.
PLAN_UNIT_BYTES = 96
# Of a shard: its name, sizes and version, in the coordinator (as they came out of the index cache too) and in each
# trainer. With 200 000 shards, opening took them 2 360 and 600 bytes a shard at most.
PLAN_SHARD_BYTES = 2560
RANK_SHARD_BYTES = 640
# Of a live row in a shuffle window: key, row in the line, arena row, and a sorting copy of the keys.
PLAN_WINDOW_ROW_BYTES = 40
# Of an announced row: its place in the arena in the plan, the message, the socket's buffers and the consumer's queue.
# Measured with 66 batches of 65 536 rows announced: the coordinator held 150 MiB more, 36 bytes a row.
ANNOUNCED_ROW_BYTES = 48
# Of a row that is planned and not announced yet, while its blocks are decoded: its block and its place in it. With 6
# and 12 million rows planned, the coordinator held 28 and 24 bytes a row.
PLANNED_ROW_BYTES = 32
# Of a batch that is planned and not announced, beside its rows: its object, two arrays' headers, names of blocks. With
# 200 000 batches of 4 rows and 780 000 of one, the coordinator held 430 and 490 bytes a batch, rows included.
PLANNED_BATCH_BYTES = 512


def stream_bytes(decoding_bytes: int, row_bytes: int, num_columns: int) -> int:
    """Returns what a stream over a row group holds: a batch twice, and each column's buffer, page and dictionary.

    Args:
        decoding_bytes: What decoding the row group's projected columns takes.
        row_bytes: The same of one row, on average.
        num_columns: The projected columns.
    """
    batch = max(min(STREAM_BATCH_BYTES, decoding_bytes), row_bytes)
    return 2 * batch + min(3 * decoding_bytes, num_columns * STREAM_COLUMN_BYTES)


def read_ahead_bytes(num_runs: int) -> int:
    """Returns what a file over a remote object holds ahead of its reader, who reads so many runs of it side by side."""
    return num_runs * max(READ_AHEAD_MIN_BYTES, min(READ_AHEAD_MAX_BYTES, READ_AHEAD_BYTES // max(1, num_runs)))
