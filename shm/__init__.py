"""o41td.shm: the only place that maps memory.

The coordinator makes a segment and plans its layout; the other processes get the descriptor and the layout over their
sockets, and map the same bytes.

```
 coordinator                          worker, consumer
 ┌──────────────────────────┐         ┌──────────────────────────────┐
 │ layout   plan_arena      │ record  │ layout   ArenaLayout         │
 │ segment  create_segment  │────────►│ segment  map_arena(fd, …)    │
 │ slots    SlotPool        │ fd      │          MappedArena.region  │
 └──────────────────────────┘         │ pages    map_private         │ (a consumer's own batches)
                                      └──────────────────────────────┘

 arena, field-major; slot i is the same row range of every region
 ┌ region "tokens" ─────────────┐┌ region "label" ┐
 │ slot 0 │ slot 1 │ … │ slot n ││ 0 │ 1 │ … │ n  │   regions start on pages
 └──────────────────────────────┘└────────────────┘
```
"""

if __name__ != "o41td.shm":
    raise ImportError(f"this folder is the package o41td.shm; it was imported as {__name__!r}. Import o41td.shm.")
