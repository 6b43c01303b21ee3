"""The command line, `o41td` and `python -m o41td`. The only part that imports typer and rich.

```
 app.py      what can be typed: commands and options          ┐
 failure.py  an error becomes one paragraph and an exit code  │
 run.py      o41td run:    a config's stages, to their end    │ each a plain function that takes
 demo.py     o41td demo:   sample data, a resume, a summary   │ values and writes to a Console
 status.py   o41td status: the loaders that run here          │
 plan.py     o41td plan:   what a config comes to             ┘
 pace.py     a stream driven stage by stage, and its figures  ┐ know nothing of terminals
 wording.py  bytes, rates and times as people read them       ┘
```
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line on `sys.argv` and leave with its exit code."""
    from o41td.cli.app import run_app

    run_app()
