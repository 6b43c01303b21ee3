"""How the command line ends: an exit code, and one paragraph on stderr where something is wrong.

0 done · 1 the stream failed · 2 the arguments or the config are wrong · 128 + n ended by signal n, as shells have it:
129 hung up, 130 interrupted (Ctrl-C), 143 terminated.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable

from o41td.cli.wording import printable
from o41td.errors import (
    CheckpointError,
    ConfigError,
    DatasetConflictError,
    MemoryBoundError,
    O41Error,
    SchemaError,
)

__all__ = ["Interrupted", "StreamsPartError", "UsageProblem", "exit_code_of"]


_WRONG_ARGUMENTS = (ConfigError, CheckpointError, SchemaError, MemoryBoundError, DatasetConflictError)
"""What no second try mends: the config or what was typed has to change."""


class Interrupted(Exception):
    """A signal asked the command to end, with the line that tells the user where things stand."""

    def __init__(self, sentence: str, number: int = signal.SIGINT) -> None:
        """The sentence, and the signal's number."""
        super().__init__(sentence)
        self.number = number


class StreamsPartError(Exception):
    """Two streams that must be the same are not."""


class UsageProblem(Exception):
    """What was typed makes no sense; the message says what does."""


def exit_code_of(action: Callable[[], object], *, debug: bool) -> int:
    """Run `action` and return the exit code, having explained a failure on stderr.

    Args:
        action: the command; an integer it returns is its exit code.
        debug: print the traceback before the paragraph.
    """
    try:
        result = action()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has left (`o41td status | head`)
        _leave_stdout()
        return 1
    except Interrupted as interruption:
        return _explained(str(interruption), 128 + interruption.number)
    except KeyboardInterrupt:
        return _explained("Interrupted.", 130)
    except Exception as error:  # noqa: BLE001 - the outermost frame: everything becomes a sentence and a code
        if type(error).__name__ == "Abort":  # what an older typer makes of a KeyboardInterrupt
            return _explained("Interrupted.", 130)
        if debug:
            traceback.print_exc()
        try:
            sys.stdout.flush()
        except OSError as of_output:  # what was not written before cannot be written now either
            _leave_stdout()
            if isinstance(error, OSError) and error.errno == of_output.errno:
                return _explained(f"o41td: standard output cannot be written: {of_output.strerror}.", 1)
        return _explained(*_sentence_and_code(error))
    if result == 130:  # typer makes this of a KeyboardInterrupt
        return _explained("Interrupted.", 130)
    return result if isinstance(result, int) else 0


def _sentence_and_code(error: Exception) -> tuple[str, int]:
    others = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()) if note.startswith("Also: "))
    if isinstance(error, (UsageProblem, *_WRONG_ARGUMENTS)):
        return f"o41td: {error}{others}", 2
    if isinstance(error, O41Error | StreamsPartError):
        return f"o41td: {error}{others}", 1
    if hasattr(error, "format_message"):  # typer's and click's own errors; newer typers vendor click
        return f"o41td: {_sentence(error.format_message())} See `{_command_of(error)} --help`.", 2
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"o41td: this host does not let it go on: {error.strerror}{where}. --debug tells what was tried.", 1
    name = type(error).__name__
    return f"o41td: this is a bug in o41td: {name}: {error}. Run again with --debug for the traceback.", 1


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _command_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return getattr(context, "command_path", None) or "o41td"


def _explained(sentence: str, code: int) -> int:
    print(printable(sentence), file=sys.stderr, flush=True)  # noqa: T201 - this is the command line's voice
    return code


def _leave_stdout() -> None:
    """Lets what Python still holds for standard output go nowhere: it would complain once more when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
