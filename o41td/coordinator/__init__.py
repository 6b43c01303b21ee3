"""The coordinator: plans the order, hands blocks to workers, tells ranks of batches; it touches no row bytes.

opening (listing, footers, index) ──► sizing (slots, bound) ──► server (one selector: owner, workers, status)
                                                                  │  events ▼      ▲ instructions
rank_plan ─ lane_window ─ blocks ──► planned batches ──────────► state (pure): block_table, slots, ranks, workers
"""
