"""Measures other loaders beside o41td and bare pyarrow over the same rows, interleaved: `scripts/peers/run`.

compare ── for each round, workload and peer ──► measure (a process of its own) ──► adapters/<a library>
   │                                                │  workloads: columns, batch sizes, padding
   └─ docs/comparison.md                            └─ digest: are these the rows of the Parquet files?
"""
