"""Progress of work through files: a share that is redrawn on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from o41td.cli.wording import bytes_text, share_text

__all__ = ["file_progress_shown"]

_REDRAW_S = 0.1
_PLAIN_LINE_S = 5.0


@contextlib.contextmanager
def file_progress_shown(console: Console, total_bytes: int) -> Iterator[Callable[[int, str], None]]:
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
