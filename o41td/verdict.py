"""The verdict: what holds a stream back, the figures that say so, and the setting to change. Pure.

A stream is a pipe of four parts: storage, decoding workers, the arena between, and the training loop. Whichever is the
narrowest sets the pace, and shows by what the others do:

| the loop waits | workers are busy | then |
|---|---|---|
| hardly | | the loop is the limit |
| much | much | decoding; storage, where they mostly fetch; the cores, where they wait for one |
| | | a source, where one takes most of their time for few bytes |
| much | little, and no slot is free, or blocks are decoded again | the arena is too small |
| much | little | the loop takes batches as fast as they can be put together |

Figures are the record of a loader, as the coordinator gives it; rates in it are over the last ten seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from o41td.counted import counted_text
from o41td.percentages import percent_text

__all__ = ["Verdict", "verdict_of"]

_HARDLY_WAITS = 0.05
_WAITS_MUCH = 0.2
_BUSY = 0.7
_MOSTLY_FETCHING = 0.5
_MOSTLY_QUEUEING = 0.4
_DECODED_AGAIN = 0.1
_SLOW_SOURCE_WORK = 0.5
_SLOW_SOURCE_RATIO = 3.0
_STILL_S = 10.0
_STEPS_BEHIND = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What holds a stream back.

    Attributes:
        limit: One word of it: "opening", "idle", "starting", "ended", "loop", "still", "decoding", "storage", "cores",
            "source", "memory", "gathering", "balanced" or "silent".
        text: The same in words.
        evidence: The figures that say so, each a phrase.
        advice: What to change, "" for nothing.
    """

    limit: str
    text: str
    evidence: tuple[str, ...] = field(default=())
    advice: str = ""

    def to_record(self) -> dict[str, Any]:
        """The keys of a loader's record."""
        return {
            "verdict": self.text,
            "limit": self.limit,
            "evidence": list(self.evidence),
            "advice": self.advice,
        }


def verdict_of(loader: Mapping[str, Any]) -> Verdict:
    """Judges a loader by its record; ranks that stand still while others go on are told with any verdict."""
    verdict = _verdict_of(loader)
    found = () if verdict.limit in ("opening", "ended", "still") else _ranks_still(loader)
    return replace(verdict, evidence=(*verdict.evidence, *found))


def _ranks_still(loader: Mapping[str, Any]) -> tuple[str, ...]:
    """The ranks whose loop takes none of the batches that are ready."""
    still = [
        rank
        for rank in loader["ranks"]
        if rank["batches"] and rank["ready_batches"] and rank["since_batch_s"] > _STILL_S and not rank["has_ended"]
    ]
    if not still:
        return ()
    names = ", ".join(str(rank["rank"]) for rank in still[:8]) + (", …" if len(still) > 8 else "")
    least_s = min(rank["since_batch_s"] for rank in still)
    return (f"rank{'s' if len(still) > 1 else ''} {names} took none for {least_s:,.0f} s",)


def _verdict_of(loader: Mapping[str, Any]) -> Verdict:
    if loader.get("state") == "opening":
        opening = loader["opening"]
        return Verdict(
            limit="opening",
            text="it is being opened",
            evidence=(f"{opening['footers']:,} of {opening['of']:,} footers are read",),
        )
    ranks = loader["ranks"]
    if not ranks and loader.get("served_ranks"):
        return Verdict(
            limit="idle", text="no rank is connected", evidence=(f"{len(loader['served_ranks'])} may connect",)
        )
    if not ranks or not any(rank["batches"] for rank in ranks):
        return Verdict(limit="starting", text="the first batch is on its way")
    if all(rank["has_ended"] for rank in ranks):
        return Verdict(limit="ended", text="the stage is over; the loop may advance to another, or close the stream")
    waits = max(rank["wait_fraction"] for rank in ranks)
    ready = min(rank["ready_batches"] for rank in ranks)
    still_s = min(rank["since_batch_s"] for rank in ranks)
    waited = f"the loop waits {percent_text(waits)} of the time"
    batches = "1 batch is" if ready == 1 else f"{ready:,} batches are"
    if ready and still_s > _STILL_S:
        return Verdict(
            limit="still",
            text="the training loop takes no batches: it is busy with something else, or stopped",
            evidence=(f"the last one was taken {still_s:,.0f} s ago", f"{batches} ready"),
        )
    if waits < _HARDLY_WAITS and not (not ready and still_s > _STILL_S):
        return Verdict(
            limit="loop",
            text="the training loop sets the pace; batches wait for it",
            evidence=(waited, f"{batches} ready"),
        )
    return _waiting(loader, waited, waits)


def _waiting(loader: Mapping[str, Any], waited: str, waits: float) -> Verdict:
    """The verdict where the loop waits."""
    workers, recent, arena = loader["workers"], loader["recent"], loader["arena"]
    busy = sum(worker["busy_fraction"] for worker in workers) / max(1, len(workers))
    worked = f"workers are busy {percent_text(busy)} of it"
    decoded, evicted = recent["blocks_decoded"], recent["blocks_evicted"]
    if evicted > _DECODED_AGAIN * max(1, decoded):
        return Verdict(
            limit="memory",
            text="the arena is too small: blocks are thrown out and decoded again",
            evidence=(
                waited,
                f"{evicted:,.0f} of {decoded:,.0f} blocks were thrown out of its {arena['slots']} slots",
                *_rank_behind(loader),
            ),
            advice="Raise memory_limit_bytes, or lower buffer_rows, block_rows or batch_size",
        )
    if busy >= _BUSY:
        return _working(loader, (waited, worked))
    if not arena["free"]:
        return Verdict(
            limit="memory",
            text="the arena is full: workers wait for a slot",
            evidence=(waited, worked, f"none of {arena['slots']} slots is free", *_rank_behind(loader)),
            advice="Raise memory_limit_bytes, or lower buffer_rows or block_rows",
        )
    if waits > _WAITS_MUCH:
        return Verdict(
            limit="gathering",
            text="the loop takes batches as fast as they can be put together",
            evidence=(waited, worked),
            advice="Nothing needs changing where the loop does no work; else try larger batches or prefetch_batches",
        )
    return Verdict(limit="balanced", text="loop and workers are in balance", evidence=(waited, worked))


def _rank_behind(loader: Mapping[str, Any]) -> tuple[str, ...]:
    """The rank for which blocks are kept that others are done with, where ranks share a loader and one lags."""
    if len(loader["ranks"]) < 2:
        return ()
    last, first = (choose(loader["ranks"], key=lambda rank: rank["step"]) for choose in (min, max))
    if first["step"] - last["step"] < _STEPS_BEHIND:
        return ()
    return (f"rank {last['rank']} is behind: at step {last['step']:,}, rank {first['rank']} at {first['step']:,}",)


def _working(loader: Mapping[str, Any], evidence: tuple[str, ...]) -> Verdict:
    """The verdict where workers are busy: with what?"""
    recent, workers = loader["recent"], loader["workers"]
    work_s = sum(recent[name] for name in ("fetch_s", "decode_s", "project_s"))
    fetching = recent["fetch_s"] / work_s if work_s else 0.0
    queueing = recent["core_wait_s"] / work_s if work_s else 0.0
    if queueing >= _MOSTLY_QUEUEING:
        return Verdict(
            limit="cores",
            text="this host's cores are the limit: workers wait for one",
            evidence=(*evidence, f"{percent_text(queueing)} of their work is waiting for a core"),
            advice=f"Lower threads, end what else runs on these {loader['cores']} cores, or take a larger host",
        )
    slow = _slow_source(loader)
    if slow is not None:
        name, part, ratio = slow
        return Verdict(
            limit="source",
            text=f"one source is slow: {name}",
            evidence=(
                *evidence,
                f"it takes {percent_text(part)} of their time, {ratio:.0f} times as long a byte as others",
            ),
            advice="Write its shards anew with smaller row groups or faster compression, bring them nearer, or lower "
            "its weight",
        )
    if fetching >= _MOSTLY_FETCHING:
        return Verdict(
            limit="storage",
            text="storage is the limit: workers wait for bytes",
            evidence=(*evidence, f"{percent_text(fetching)} of their work is fetching"),
            advice="Raise threads or lookahead, so that more is fetched at once, or bring the shards nearer",
        )
    cores = loader["cores"]
    advice = f"Raise threads: {len(workers)} workers run, and the host has {cores} cores"
    if len(workers) >= cores:
        crowd = f"{counted_text(cores, 'core')} for {counted_text(len(workers), 'worker')}"
        advice = f"The host has {crowd}: fewer or narrower fields, or a larger host"
    return Verdict(
        limit="decoding",
        text="decoding is the limit: the loop waits for workers",
        evidence=(*evidence, f"{percent_text(1 - fetching)} of their work is decoding"),
        advice=advice,
    )


def _slow_source(loader: Mapping[str, Any]) -> tuple[str, float, float] | None:
    """The source that takes most of the workers' time for few bytes: its name, its part, its cost a byte to others'."""
    sources = [source for source in loader["sources"] if source["recent_work_s"] and source["recent_bytes"]]
    total_s = sum(source["recent_work_s"] for source in sources)
    for source in sources if len(sources) > 1 else ():
        others_s = total_s - source["recent_work_s"]
        others_bytes = sum(other["recent_bytes"] for other in sources) - source["recent_bytes"]
        part = source["recent_work_s"] / total_s
        ratio = source["recent_work_s"] / source["recent_bytes"] / (others_s / others_bytes)
        if part >= _SLOW_SOURCE_WORK and ratio >= _SLOW_SOURCE_RATIO:
            return source["name"], part, ratio
    return None
