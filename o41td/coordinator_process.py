"""The coordinator as the training process sees it: a child that is started first of all, and a conversation with it.

It takes as long to start as everything else that opening a stream needs together, NumPy's import included. So this
module imports little, and whoever is about to open a stream starts the coordinator before going on.

Called by: the training process, from `open_batch_stream` and, after a coordinator's death, from the feed's thread.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TypeVar

from o41td.error_records import error_from_record
from o41td.errors import CoordinatorError
from o41td.workers.channel import Channel, ChannelClosed, NotOurProtocol
from o41td.workers.messages import LoaderFailed, LoaderNotice, Message, OpenLoader, OpenProgress
from o41td.workers.supervisor import ChildLog, describe_exit, reap_orphans, start_child

__all__ = ["CoordinatorProcess", "Progress"]

_LOGGER = logging.getLogger("o41td")
Progress = Callable[[int, int], None]
M = TypeVar("M", bound=Message)

_DEATH_S = 5.0
"""How long a coordinator that closed its socket may take to be dead."""
_GOODBYE_S = 1.0
"""How long a coordinator may take to leave when ours is closed. A kill costs no more than a stale entry in the runtime
folder, which the next loader removes: its workers die with it, and the arena is freed with its last user."""
_SILENCE_S = 60.0
"""How long at least a coordinator may be silent while opening; it tells of its progress every half second."""


class CoordinatorProcess:
    """A coordinator's process, its channel and what it writes to standard error."""

    def __init__(self, num_workers: int) -> None:
        """Starts it, not waiting for anything.

        The number of workers is all it must know: what it is to open is told once that is worked out.

        Raises:
            CoordinatorError: The system has no room for one more process or descriptor, or does not let this program
                start another; or this is a subinterpreter, which cannot.
        """
        self._log = ChildLog()
        try:
            self._process = start_child("o41td.coordinator", ["--workers", str(num_workers)], log=self._log)
        except OSError as error:
            self._log.close()
            raise CoordinatorError(
                f"the loader's coordinator cannot be started: {error.strerror or error}",
                where=sys.executable,
                advice="Look at the limits of processes, descriptors and memory (`ulimit -a`, the container's)",
            ) from error
        except BaseException:
            self._log.close()
            raise
        self.channel = Channel(self._process.connection, blocking=True)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, request: OpenLoader, answer: type[M], progress: Progress | None, *, stall_timeout_s: float) -> M:
        """Asks for a loader and returns the answer of the given kind.

        Blocks: until it comes; `progress` hears of footers read, of footers in all.

        Raises:
            O41Error: What the coordinator found wrong with the request, or `CoordinatorError` if it died.
        """
        try:
            self.channel.send(request)
        except ChannelClosed:
            raise CoordinatorError("the loader's coordinator did not start", log_tail=self.end()) from None
        timeout_s = max(stall_timeout_s, _SILENCE_S)
        while True:
            message = self._hear(timeout_s)
            if isinstance(message, answer):
                return message
            if isinstance(message, LoaderFailed):
                raise error_from_record(message.error)
            if isinstance(message, LoaderNotice):
                _LOGGER.log(logging.WARNING if message.is_warning else logging.INFO, "%s", message.text)
            if isinstance(message, OpenProgress) and progress is not None:
                progress(message.done, message.total)

    def _hear(self, timeout_s: float) -> Message:
        try:
            return self.channel.receive(timeout_s)
        except TimeoutError:
            self._process.kill()
            raise CoordinatorError(
                f"the loader's coordinator said nothing for {timeout_s:g} s while opening, and was killed",
                log_tail=self._log.tail(),
                advice="Is it stopped, or the host overloaded? Raise stall_timeout_s if it needs longer",
            ) from None
        except NotOurProtocol as broken:
            self._process.kill()
            raise CoordinatorError(
                f"the loader's coordinator sent what is no message while opening, and was killed: {broken}",
                log_tail=self._log.tail(),
                advice="Does something in this environment write to descriptors that it did not open?",
            ) from None
        except ChannelClosed:
            exit_code = self._process.wait(_DEATH_S)
            raise CoordinatorError(
                f"the loader's coordinator died while opening: {describe_exit(exit_code)}", log_tail=self._log.tail()
            ) from None

    def kill(self) -> None:
        """Kills it, which is heard of as its death."""
        self._process.kill()

    def end(self) -> str:
        """Ends it (its workers end with it) and returns how it had ended, with what it wrote to its log.

        Blocks: until it is dead, a few milliseconds; a stopped one is killed after 1 s. Idempotent.
        """
        self.channel.close()
        if self._process.sentinel < 0:
            return ""
        exit_code = self._process.wait(_GOODBYE_S)
        if exit_code is None:
            self._process.kill()
            exit_code = self._process.wait()
        if exit_code:
            reap_orphans()
        words = f"{describe_exit(exit_code)}\n{self._log.tail()}".strip()
        self._process.close()
        self._log.close()
        return words

    def close_after_fork(self) -> None:
        """Closes this process's copies of the descriptors, in a child that a fork made."""
        self.channel.close()
        self._process.close()
        self._log.close()
