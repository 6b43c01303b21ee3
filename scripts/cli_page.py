"""Writes docs/cli.md from the commands themselves.

python -P scripts/cli_page.py [--check]
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo

from o41td.cli.app import app

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
OF_EVERY_COMMAND = ("--json", "--debug")
HEAD = """# Command line

`o41td COMMAND …` or `python -m o41td COMMAND …`. This page is written from the commands' own help; the same with
`o41td COMMAND --help`. [README](../README.md#on-the-command-line) says which is for what, and
[observing.md](observing.md) shows what they print.

Every command takes `--json`, which prints for programs instead of for people, and `--debug`, which adds the traceback
to an error; errors are one paragraph on stderr. Exit codes: 0 done, 1 the stream failed, 2 wrong arguments, or a config
that makes no sense or that data or memory do not allow, 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM.
"""


def page() -> Iterator[str]:
    """The page, part by part."""
    yield HEAD
    for command in sorted(app.registered_commands, key=name_of):
        assert command.callback is not None, "the app registers functions"
        yield from section(f"o41td {name_of(command)}", command.callback)


def name_of(command: Any) -> str:
    """What is typed for a command."""
    return str(command.name or command.callback.__name__)


def section(title: str, function: Callable[..., Any]) -> Iterator[str]:
    """One command: what it does, how it is typed, and its options."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    usage, rows = [title], []
    for name, hint in get_type_hints(function, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue  # what it returns
        kind, info = get_args(hint)
        is_required = defaults[name] is inspect.Parameter.empty
        if isinstance(info, ArgumentInfo):
            typed = info.metavar or name.upper()
            word = f"{typed}…" if get_origin(kind) is list else typed
            usage.append(word if is_required else f"[{word}]")
            rows.append((f"`{typed}`", info.help, ""))
        else:
            # In an Annotated the first name of an option stands where its default would.
            options = [option for option in (info.default, *(info.param_decls or ())) if isinstance(option, str)]
            if options[0] in OF_EVERY_COMMAND:
                continue
            names = ", ".join(f"`{option}`" for option in options)
            rows.append((f"{names}{takes(kind)}", info.help, default_text(defaults[name])))
    usage.append("[OPTIONS]")
    yield f"## {title}\n"
    yield f"{inspect.getdoc(function)}\n"
    yield f"```text\n{' '.join(usage)}\n```\n"
    if rows:
        yield "| | | default |\n|---|---|---|"
    for names, text, default in rows:
        yield f"| {names} | {cell(text)} | {default} |"
    yield ""


def takes(kind: Any) -> str:
    """What an option takes behind its name."""
    kinds = [part for part in (get_args(kind) or (kind,)) if part is not type(None)]
    return {bool: "", int: " N", float: " N", Path: " FILE"}.get(kinds[0], " TEXT")


def default_text(default: object) -> str:
    """A default where it says something."""
    if default is inspect.Parameter.empty:
        return "required"
    return "" if default is None or isinstance(default, bool) else f"`{default}`"


def cell(text: str | None) -> str:
    """Text as it stands in a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


def main() -> int:
    """Writes the page, or compares it."""
    text = "\n".join(page()).rstrip() + "\n"
    if "--check" not in sys.argv:
        DOCUMENT.write_text(text)
        return 0
    if text != DOCUMENT.read_text():
        print("docs/cli.md is stale: run scripts/docs write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
