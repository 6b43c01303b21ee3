"""The order: which row comes when, as arithmetic over row counts.

Pure: no input or output, no clock, no global random state. The order of a stage is a function of the seed, the stage's
number, the row counts of its sources' units, the weights, ``batch_size``, the shuffle's ``buffer_rows`` and ``lanes``.
It does not depend on worker count, timing, host, NumPy version or Python version.

::

    unit rows --SourceLine--> line of an epoch --LaneLine--> x: a lane's rows of one source, epoch after epoch
                                                                |
                                                           SourceWalk (shuffle: x in the order in which rows leave)
                                                                |
    weights --integer_shares--> ShareTable --LaneMix--> which source gives row t of the lane
                                                                |
                                                            LaneReader --> batches of (source, x)
                                                                |
              StageOrder: batch n is batch n // L of lane n % L; totals, rounds, dropped rows, coordinates, find

Kinds of index, used with these names everywhere:

* ``n``: number of a batch in its stage; ``batch_in_lane`` = n // lanes.
* ``t``: position of a row in a lane (all sources), counted from the start of the stage.
* ``c`` ("count"): how many rows of one source a lane has handed out before this one.
* ``p``: position in a lane's part of one epoch of one source, in line order.
* ``x``: p continued over epochs: ``x = epoch * rows_per_epoch + p``.
* ``unit``, ``row``: index in the source's listed units, and the row within that unit.
"""

from o41td.order.digest import add_digests, row_digests, total_digest
from o41td.order.hash import ORDER_VERSION, Purpose, hash_counters, stream_key
from o41td.order.lane import LaneReader, LaneRows
from o41td.order.leaving import LeavingOrder
from o41td.order.line import LaneLine, Runs, SourceLine
from o41td.order.mix import LaneMix, MixPlan
from o41td.order.ranks import lanes_of_rank, rank_batches
from o41td.order.shares import CHUNK_ROWS, ShareTable, integer_shares
from o41td.order.shuffle import SourceWalk
from o41td.order.stage import Occurrence, StageOrder

__all__ = [
    "CHUNK_ROWS",
    "ORDER_VERSION",
    "LaneLine",
    "LaneMix",
    "LaneReader",
    "LaneRows",
    "LeavingOrder",
    "MixPlan",
    "Occurrence",
    "Purpose",
    "Runs",
    "ShareTable",
    "SourceLine",
    "SourceWalk",
    "StageOrder",
    "add_digests",
    "hash_counters",
    "integer_shares",
    "lanes_of_rank",
    "rank_batches",
    "row_digests",
    "stream_key",
    "total_digest",
]
