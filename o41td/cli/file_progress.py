"""Progress of work through files: a share that is redrawn on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from rich.console import Console

from o41td.cli.ending import AskedToEnd, asked_to_end
from o41td.cli.failure import Interrupted
from o41td.cli.wording import bytes_text, count_text, counted_text, share_text
from o41td.writing.conversion import WriteJob, WriteProgress
from o41td.writing.inputs import list_inputs
from o41td.writing.packed_documents import PackJob

__all__ = ["run_shown"]

R = TypeVar("R")

_REDRAW_S = 0.1
_PLAIN_LINE_S = 5.0


@contextlib.contextmanager
def _progress_shown(console: Console, total_bytes: int) -> Iterator[Callable[[int, str], None]]:
    """Show how far into some files the work is, while the block lasts.

    Yields:
        What to call with the bytes of the files that are behind, and with what else there is to say.
    """
    say_again_s = time.monotonic() + (0.0 if console.is_terminal else _PLAIN_LINE_S)
    with console.status("Reading ...") if console.is_terminal else contextlib.nullcontext() as status:

        def shown(done_bytes: int, text: str) -> None:
            nonlocal say_again_s
            now_s = time.monotonic()
            if now_s < say_again_s:
                return
            line = f"{share_text(done_bytes, total_bytes)} of {bytes_text(total_bytes)}: {text}"
            if status is None:
                console.print(f"   {line}", highlight=False, soft_wrap=True)
                say_again_s = now_s + _PLAIN_LINE_S
            else:
                status.update(line)
                say_again_s = now_s + _REDRAW_S

        yield shown


def run_shown(
    run: Callable[[Callable[[WriteProgress], object]], R], job: WriteJob | PackJob, *, rows: str, quiet: bool
) -> tuple[R, float]:
    """Run a job that turns files into shards, and show on standard error how far it is.

    Args:
        run: does it; what it is given hears how far it is.
        job: what it does.
        rows: what the job's rows are called.
        quiet: show nothing.

    Returns:
        What `run` returns, and how many seconds it took.

    Raises:
        Interrupted: Ctrl-C, SIGTERM or SIGHUP.

    Blocks: until it is done.
    """
    total_bytes = sum(file.size_bytes for file in list_inputs(job.inputs, job.input_format, to=job.manifest_uri))
    start_s = time.monotonic()
    num_shards = 0

    def tell(at: WriteProgress) -> None:
        nonlocal num_shards
        num_shards = at.shards
        shown(at.input_bytes, f"{count_text(at.rows_read)} {rows}, {counted_text(at.shards, 'shard')}")

    try:
        with asked_to_end(), _progress_shown(Console(stderr=True, quiet=quiet), total_bytes) as shown:
            result = run(tell)
    except AskedToEnd as asked:
        text = asked.word
        if num_shards:
            text += f" after {counted_text(num_shards, 'shard')}; the same command goes on from there"
        raise Interrupted(f"{text}.", asked.number) from None
    return result, time.monotonic() - start_s
