"""The command line, `o41td` and `python -m o41td`. The only part that imports typer and rich.

```
 app.py         what can be typed: commands and options
 failure.py     how a command ends: an exit code, and one paragraph where something is wrong
 ending.py      Ctrl-C, SIGTERM and SIGHUP as one kind of exception
 run.py         o41td run:    a config's stages, to their end
 demo.py        o41td demo:   the sample or an own config, with a stop and without
 comparison.py    its three streams, and whether they are the same
 status.py      o41td status: the loaders that run here
 plan.py        o41td plan:   what a config comes to, and how two differ
 plot.py        the curriculum as a picture
 trace.py       o41td trace:  what a batch holds, where a row comes
 verify.py      o41td verify: whether two streams are the same
 bench.py       o41td bench:  what a config reaches here, and where the time goes
 convert.py     o41td convert: a document of o41-training-data as a config
 pace.py        a stream driven stage by stage, and its figures; knows nothing of terminals
 console.py     where commands print: a terminal, or a pipe whose lines have no width
 progress.py    those figures while they grow: a live line, or plain lines
 summary.py     those figures at the end
 wording.py     bytes, rates and times as people read them
```
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line on `sys.argv` and leave with its exit code."""
    _fill_standard_streams()
    try:
        from o41td.cli.app import run_app

        run_app()
    except KeyboardInterrupt:  # before the command began, or a second one while it was ending
        sys.exit(130)


def _fill_standard_streams() -> None:
    """Gives standard streams that are closed to the null device.

    Otherwise the next file or socket to be opened would have the number of one, and be written to for it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - a descriptor, for good
