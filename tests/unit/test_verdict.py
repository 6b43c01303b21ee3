"""Verdicts: given figures, what holds the stream back."""

from __future__ import annotations

from typing import Any

import pytest

from o41td.verdict import verdict_of


def figures(
    *,
    wait: float,
    busy: float,
    fetch: float = 0.1,
    queue: float = 0.0,
    free: int = 4,
    evicted: int = 0,
    ready: int = 0,
    **keys: Any,
) -> dict[str, Any]:
    """A loader of two workers on eight cores: the loop waits `wait`, workers are `busy`, `fetch` of it fetching."""
    rank = {
        "batches": 100, "wait_fraction": wait, "ready_batches": ready, "since_batch_s": 0.1, "has_ended": False,
    }  # fmt: skip
    loader: dict[str, Any] = {
        "state": "streaming",
        "cores": 8,
        "ranks": [rank | keys.pop("rank", {})],
        "workers": [{"busy_fraction": busy}] * 2,
        "sources": [
            {"name": "mix/web", "recent_work_s": 1.0, "recent_bytes": 1e8},
            {"name": "mix/books", "recent_work_s": 3.0, "recent_bytes": 3e8},
        ],
        "arena": {"slots": 12, "free": free},
        "recent": {
            "fetch_s": 10 * fetch, "decode_s": 9 * (1 - fetch), "project_s": 1 - fetch, "decoded_bytes": 4e8,
            "blocks_decoded": 50, "blocks_evicted": evicted, "core_wait_s": 10 * queue,
        },
    }  # fmt: skip
    return loader | keys


@pytest.mark.parametrize(
    ("loader", "limit", "said", "advice"),
    [
        (figures(wait=0.01, busy=0.4, ready=4), "loop", ["waits 1 %", "4 batches are ready"], ""),
        (figures(wait=0.004, busy=1.0, ready=1), "loop", ["waits <1 %", "1 batch is ready"], ""),
        (figures(wait=0.9, busy=0.95), "decoding", ["90 %", "busy 95 %", "90 % of their work is decoding"], "8 cores"),
        (figures(wait=0.9, busy=0.95, cores=2), "decoding", ["busy 95 %"], "2 cores for 2 workers"),
        (
            figures(wait=0.9, busy=0.95, fetch=0.8),
            "storage",
            ["80 % of their work is fetching"],
            "threads or lookahead",
        ),
        (figures(wait=0.9, busy=0.95, queue=0.39), "decoding", ["busy 95 %"], "8 cores"),
        (
            figures(wait=0.9, busy=0.95, queue=0.41, cores=2),
            "cores",
            ["41 % of their work is waiting"],
            "these 2 cores",
        ),
        (figures(wait=0.6, busy=0.3, free=0), "memory", ["none of 12 slots"], "memory_limit_bytes"),
        (figures(wait=0.6, busy=0.9, evicted=20), "memory", ["20 of 50 blocks"], "buffer_rows"),
        (figures(wait=0.9, busy=0.3), "gathering", ["waits 90 %", "busy 30 %"], "prefetch_batches"),
        (figures(wait=0.1, busy=0.3), "balanced", ["waits 10 %"], ""),
        (figures(wait=0.0, busy=0.0, ready=6, rank={"since_batch_s": 95.0}), "still", ["95 s ago", "6 batches"], ""),
        (figures(wait=0.0, busy=0.0, rank={"has_ended": True}), "ended", [], ""),
        (figures(wait=0.0, busy=0.0, rank={"batches": 0}), "starting", [], ""),
        (figures(wait=0.0, busy=0.0, ranks=[]), "starting", [], ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_limit_its_evidence_and_what_to_change(loader, limit, said, advice):
    """Each kind of bottleneck is told by its figures, with the figures and the setting to change."""
    verdict = verdict_of(loader)
    assert verdict.limit == limit
    assert all(part in ", ".join(verdict.evidence) for part in said)
    assert advice in verdict.advice
    assert bool(verdict.advice) == bool(advice)


def test_a_loop_that_waits_for_one_batch_for_long_is_not_called_still():
    """No batch for 95 s, none ready, workers busy: the wait is not in the figures yet, and decoding is to blame."""
    assert verdict_of(figures(wait=0.0, busy=1.0, rank={"since_batch_s": 95.0})).limit == "decoding"


def test_a_source_that_takes_most_time_for_few_bytes_is_named():
    """web: 90 % of the time for a tenth of the bytes is (9 / 1) / (1 / 9) = 81 times as long a byte as books."""
    sources = [
        {"name": "mix/web", "recent_work_s": 9.0, "recent_bytes": 1e6},
        {"name": "mix/books", "recent_work_s": 1.0, "recent_bytes": 9e6},
        {"name": "mix/idle", "recent_work_s": 0.0, "recent_bytes": 0.0},
    ]
    verdict = verdict_of(figures(wait=0.5, busy=1.0, sources=sources))
    assert (verdict.limit, verdict.text) == ("source", "one source is slow: mix/web")
    assert "90 % of their time, 81 times as long a byte" in verdict.evidence[-1]
    alone = verdict_of(figures(wait=0.5, busy=1.0, sources=sources[:1]))
    assert alone.limit == "decoding"


def test_ranks_that_stand_still_beside_others_are_named():
    """Of four ranks two take nothing of what is ready for 15 s and more; one that waits or has ended is not blamed."""
    loader = figures(wait=0.01, busy=0.4, ready=4)
    (rank,) = loader["ranks"]
    others = ({"since_batch_s": 15.2}, {"since_batch_s": 20.0}, {"since_batch_s": 30.0, "has_ended": True})
    loader["ranks"] = [each | {"rank": place} for place, each in enumerate([rank, *(rank | other for other in others)])]
    verdict = verdict_of(loader)
    assert verdict.limit == "loop"
    assert verdict.evidence[-1] == "ranks 1, 2 took none for 15 s"
    loader["ranks"] = [loader["ranks"][0], loader["ranks"][1] | {"ready_batches": 0}]
    assert "took none" not in ", ".join(verdict_of(loader).evidence)


def test_the_slowest_rank_decides():
    """Of two ranks, one that waits is enough."""
    loader = figures(wait=0.9, busy=1.0)
    loader["ranks"] = [loader["ranks"][0] | {"wait_fraction": 0.0}, *loader["ranks"]]
    assert verdict_of(loader).limit == "decoding"


def test_a_rank_that_lags_is_named_where_memory_is_short():
    """Rank 1 is 90 steps behind: blocks are kept for it. Three steps are nothing to speak of."""
    loader = figures(wait=0.6, busy=0.3, free=0)
    loader["ranks"] = [loader["ranks"][0] | {"rank": rank, "step": step} for rank, step in enumerate((100, 10, 97))]
    verdict = verdict_of(loader)
    assert (verdict.limit, verdict.evidence[-1]) == ("memory", "rank 1 is behind: at step 10, rank 0 at 100")
    loader["ranks"][1]["step"] = 97
    assert "behind" not in verdict_of(loader).evidence[-1]


def test_a_served_loader_without_ranks_is_idle():
    """Nobody is connected, and how many may."""
    verdict = verdict_of(figures(wait=0.0, busy=0.0, ranks=[], served_ranks=[0, 1, 2]))
    assert (verdict.limit, verdict.evidence) == ("idle", ("3 may connect",))


def test_a_loader_that_opens_says_how_far_it_is():
    """Footers read, of how many; nothing else is known yet."""
    verdict = verdict_of({"state": "opening", "opening": {"footers": 1200, "of": 5000}, "ranks": []})
    assert (verdict.limit, verdict.evidence) == ("opening", ("1,200 of 5,000 footers are read",))
