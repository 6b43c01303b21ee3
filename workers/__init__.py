"""o41td.workers: the processes that read and decode shards, and the channel that reaches them."""

if __name__ != "o41td.workers":
    raise ImportError(
        f"this folder is the package o41td.workers; it was imported as {__name__!r}. Import o41td.workers."
    )
