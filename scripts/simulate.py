"""Walks the order and the scheduler of a run of many shards and ranks, none of which exist; for docs/scale.md.

Bytes and requests are counted over every lane. Opening is measured. What ranks wait is simulated for some of them in
step (`simulated_loader`), in simulated time.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from simulated_fleet import Fleet, Workload
from simulated_loader import Pace, RunInStep, Trouble

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.rank_plan import RankPlan
from o41td.order import StageOrder

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- begin: scripts/simulate -->", "<!-- end: scripts/simulate -->"
IMAGES = Workload(name="images", width=12288, unit_rows=1024, batch_size=256, step_s=0.25)
TOKENS = Workload(name="tokens", width=2048, unit_rows=8192, batch_size=32, step_s=1.0)
PACE = Pace()
TROUBLES = (
    Trouble(name="none"),
    Trouble(name="1 fetch in 100 takes 1 s longer", one_in=100, delay_s=1),
    Trouble(name="1 in 100 takes 5 s longer", one_in=100, delay_s=5),
    Trouble(name="1 in 500 takes 20 s longer", one_in=500, delay_s=20),
    Trouble(name="one rank decodes 4 times as slowly", slow_ranks=1, slow_factor=4),
    Trouble(name="one rank decodes 12 times as slowly", slow_ranks=1, slow_factor=12),
)
SOME_SLOW = TROUBLES[2]
LOOKAHEADS = (2, 8, 16, 32, 64)


def own_bytes() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def seconds(action: Callable[[], object]) -> float:
    """How long something takes, of this process's CPU."""
    begin = time.process_time()
    action()
    return time.process_time() - begin


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def span(values: list[int], unit: float = 1, digits: int = 0) -> str:
    """The least and the most of some numbers."""
    low, high = (f"{value / unit:,.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


def reading(fleets: list[Fleet]) -> Iterator[str]:
    """What ranks read in an epoch, and how often they ask for it."""
    rows = []
    for fleet in fleets:
        costs = [fleet.lane_cost(lane) for lane in range(fleet.num_ranks)]
        epoch_s = fleet.index.num_rows / fleet.num_ranks / fleet.workload.batch_size * fleet.workload.step_s
        requests_per_s = statistics.mean(cost.requests for cost in costs) / epoch_s
        stored = int(fleet.index.unit_compressed_bytes.sum())
        rows.append(
            [
                f"{fleet.workload.name}: {fleet.workload.bytes_per_s / 1e6:.2g} MB/s decoded a rank",
                f"{stored / 1e12:.1f} TB",
                span([cost.rows for cost in costs]),
                f"{span([cost.fetched_bytes for cost in costs], 1e9, 2)} GB",
                f"{sum(cost.fetched_bytes for cost in costs) / stored:.4f}",
                f"{requests_per_s:.2g}",
                f"{requests_per_s * fleet.num_ranks:,.0f}",
                f"{epoch_s / 3600:,.2f} h",
            ]
        )
    heads = ["workload", "stored", "rows a rank", "fetched a rank", "fetched / stored", "requests/s of a rank"]
    yield from table([*heads, "of all", "epoch"], rows)


def memory(fleets: list[Fleet]) -> Iterator[str]:
    """What a host with eight ranks takes: by the memory bound, and in slots."""
    rows = []
    for fleet in fleets:
        for name, ranks, times in (("a loader for each rank", 1, 8), ("one that serves all eight", 8, 1)):
            size = fleet.size(ranks)
            terms = size.bound.terms
            cells = [times * value / 2**30 for value in (terms["plan"], terms["arena"], size.bound.total_bytes)]
            slots = f"{times * size.layout.num_slots} of {size.layout.block_rows} rows"
            rows.append([f"{fleet.workload.name}, {name}", slots, *[f"{cell:.1f} GiB" for cell in cells]])
    yield from table(["eight ranks of a host", "slots", "plan", "arena", "bound in all"], rows)


def opening(fleet: Fleet) -> Iterator[str]:
    """How long one rank's order takes to set up, and a place in it to open."""
    before = own_bytes()
    index_s = seconds(lambda: fleet.index)
    set_up_s = seconds(lambda: fleet.order)
    grown = own_bytes() - before
    luck = random.Random(1)

    def open_at(place: float) -> float:
        position = int((fleet.order.num_batches or 0) * place) // fleet.num_ranks * fleet.num_ranks
        plan = RankPlan(
            fleet.order,
            [fleet.index],
            stage=0,
            position=position,
            global_batch=position,
            rank=luck.randrange(fleet.num_ranks),
            world_size=fleet.num_ranks,
            block_rows=fleet.size().layout.block_rows,
            resident=frozenset(),
            table=BlockTable(fleet.size().layout.block_rows),
        )
        return seconds(plan.next_batches)

    fleet.size()
    first_s = open_at(0.5)
    places = {place: statistics.median(open_at(place) for _ in range(15)) for place in (0.0, 0.5, 0.95)}
    rows = [
        [f"row counts of {fleet.num_shards:,} shards laid out", f"{index_s * 1000:.0f} ms"],
        ["order set up", f"{set_up_s * 1000:.0f} ms, {grown / 1e6:.0f} MB with the row counts"],
        ["the first place of all, which permutes the shards", f"{first_s * 1000:.0f} ms"],
        *[[f"first batches planned at {place:.0%} of the epoch", f"{s * 1000:.1f} ms"] for place, s in places.items()],
    ]
    yield from table([f"one source, {fleet.num_ranks:,} lanes", ""], rows)


def plan_of_many_sources(num_units: int) -> Iterator[str]:
    """Three stages of 100 sources, mixed by uneven weights, over the same units."""
    rng, luck = np.random.default_rng(1), random.Random(2)
    rows = []
    units = [rng.integers(500, 1500, num_units // 100) for _ in range(100)]
    weights = rng.uniform(0.1, 10, 100).tolist()

    def set_up(lanes: int) -> list[StageOrder]:
        return [
            StageOrder(
                seed=1,
                stage_index=stage,
                unit_rows=units,
                weights=weights[stage:] + weights[:stage],
                batch_size=32,
                buffer_rows=4096,
                lanes=lanes,
            )
            for stage in range(3)
        ]

    def open_somewhere(order: StageOrder) -> None:
        batch = luck.randrange(order.num_batches or 1)
        order.open_lane(batch % order.lanes, batch // order.lanes).read_batches(1)

    for lanes in (1, 4096):
        before = own_bytes()
        begin = time.process_time()
        orders = set_up(lanes)
        set_up_s = time.process_time() - begin
        took = [1000 * seconds(partial(open_somewhere, orders[number % 3])) for number in range(63)]
        later = sorted(took[3:])
        rows.append(
            [
                f"{lanes:,}",
                f"{set_up_s:.2f} s",
                f"{max(took[:3]):.0f} ms",
                f"{statistics.median(later):.0f} ms, {later[len(later) * 9 // 10]:.0f} ms",
                f"{(own_bytes() - before) / 1e6:.0f} MB",
            ]
        )
    heads = ["lanes", "set-up of three stages", "first place in a stage", "any other: median, nine in ten", "memory"]
    yield from table(heads, rows)


def ahead_s(fleet: Fleet) -> float:
    """For how many seconds the blocks suffice that are decoded beyond the shuffle's window."""
    shape = fleet.size().bound.shape
    fill_rows = shape.fill_rows or shape.block_rows
    slots = shape.num_slots - -(-fleet.buffer_rows // fill_rows) - 1
    return slots * fill_rows / fleet.workload.batch_size * fleet.workload.step_s


def waiting(fleet: Fleet, *, num_ranks: int, num_steps: int) -> Iterator[str]:
    """How much of their time ranks in step lose, by what goes wrong and by how far ahead is decoded."""
    fleets = [replace(fleet, lookahead=lookahead) for lookahead in LOOKAHEADS]
    rows = [["slots beyond the shuffle window, in seconds of training", *[f"{ahead_s(each):.1f} s" for each in fleets]]]
    for trouble in TROUBLES:
        runs = [
            RunInStep(each, num_ranks=num_ranks, num_steps=num_steps, trouble=trouble, pace=PACE) for each in fleets
        ]
        rows.append([trouble.name, *[f"{run.lost_share:.1%}" for run in runs]])
        print(rows[-1], file=sys.stderr, flush=True)
    heads = [f"{fleet.workload.name}, {num_ranks} ranks in step, {num_steps} steps"]
    yield from table([*heads, *[f"`lookahead` {lookahead}" for lookahead in LOOKAHEADS]], rows)
    yield ""
    many = [num for num in (1, 4, 16, 64, 256) if num <= 4 * num_ranks]
    cells = []
    for num in many:
        run = RunInStep(fleet, num_ranks=num, num_steps=num_steps, trouble=SOME_SLOW, pace=PACE)
        used = [loader.most_slots for loader in run.loaders]
        trained_rows = num * num_steps * fleet.workload.batch_size
        cells.append(
            [
                f"{num}",
                f"{run.lost_alone:.1%}",
                f"{run.lost_share:.1%}",
                f"{run.first_batch_s:.2f} s",
                f"{run.requests_per_s(0, 1):.0f}",
                f"{run.requests_per_s(run.first_batch_s + 2, run.first_batch_s + run.wall_s):.1f}",
                f"{span(used)} of {run.loaders[0].state.slots.num_slots}",
                f"{sum(loader.rows_decoded for loader in run.loaders) / trained_rows:.2f}",
                f"{sum(loader.state.blocks_evicted for loader in run.loaders)}",
            ]
        )
    heads = [f"ranks in step ({SOME_SLOW.name}, `lookahead` {fleet.lookahead})", "waits a rank", "lost by all"]
    heads += ["first batch", "requests of a rank in the first second", "later, a second", "slots in use at most"]
    yield from table([*heads, "rows decoded, of those trained on", "blocks evicted"], cells)


def write_report(text: str) -> None:
    """Puts the tables between the marks of docs/scale.md."""
    path = ROOT / "docs" / "scale.md"
    head, rest = path.read_text().split(BEGIN)
    path.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


def main() -> int:
    """Parses arguments and runs."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--in-step", type=int, default=32, help="how many ranks are simulated in step")
    parser.add_argument("--steps", type=int, default=200, help="how many steps they train")
    parser.add_argument("--quick", action="store_true", help="a thousandth of it, printed only")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.shards, arguments.ranks, arguments.in_step, arguments.steps = 1000, 8, 2, 40
    images, tokens = (
        Fleet(workload=workload, num_shards=arguments.shards, num_ranks=arguments.ranks)
        for workload in (IMAGES, TOKENS)
    )
    parts = [
        opening(images),
        plan_of_many_sources(arguments.shards),
        reading([images, tokens]),
        memory([images, tokens]),
        waiting(images, num_ranks=arguments.in_step, num_steps=arguments.steps),
    ]
    lines = [f"{arguments.shards:,} shards, {arguments.ranks:,} ranks."]
    for part in parts:
        lines += ["", *part]
    text = "\n".join(lines)
    print(text)
    if not arguments.quick:
        write_report(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
