"""One rank of `scripts/soak`: takes orders on standard input, one a line, and tells on standard output what came.

take N        N batches; each is told as `batch INDEX DIGEST CONTENT ROWS`
advance K     to stage K; nothing is told
save FILE     a checkpoint; told as `saved`
end           closes the stream; told as `ended LEFT`, descriptors that were not open before
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import zlib
from typing import Any

from o41td import BatchStreamConfig, open_batch_stream, resume_batch_stream

_MASK = (1 << 64) - 1
_NOT_OURS = ("/dev/", "/proc/")


def open_descriptors() -> dict[str, str]:
    """This process's descriptors and what they lead to, without libffi's own file, from which some builds map code."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own is gone by now
            continue
    return {
        name: target
        for name, target in found.items()
        if not target.startswith(_NOT_OURS) and "/libffi.so" not in target
    }


def tell(*words: Any) -> None:
    """Writes a line that the other side sees at once."""
    print(*words, flush=True)


def take(stream: Any, count: int, step_s: float) -> None:
    """Takes batches and tells of each where it stands in the order, what is in it, and how many rows it has."""
    for _ in range(count):
        before = stream.order_digest
        batch = stream.next()
        if batch is None:
            raise SystemExit("the stream ended where it has no end")
        content = 0
        for array in batch.arrays().values():
            content = zlib.crc32(array, content)
        time.sleep(step_s)
        tell("batch", batch.batch_index, (stream.order_digest - before) & _MASK, content, batch.num_rows)


def main() -> int:
    """Opens, or resumes where a checkpoint is named, and does as it is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--resume")
    parser.add_argument("--step", type=float, default=0.0, help="seconds of a training step")
    arguments = parser.parse_args()
    logging.getLogger("o41td").addHandler(logging.NullHandler())  # what is left for stderr is a fault
    place = {"rank": arguments.rank, "world_size": arguments.world_size}
    config = BatchStreamConfig.load(arguments.config)
    before = open_descriptors()
    stream = resume_batch_stream(arguments.resume, **place) if arguments.resume else open_batch_stream(config, **place)
    tell("open")
    for line in sys.stdin:
        order, *words = line.split()
        if order == "take":
            take(stream, int(words[0]), arguments.step)
        elif order == "advance":
            stream.advance(int(words[0]))
        elif order == "save":
            stream.checkpoint().save(words[0])
            tell("saved")
        else:
            break
    stream.close()
    left = open_descriptors().items() - before.items()
    tell("ended", len(left))
    return 0


if __name__ == "__main__":
    sys.exit(main())
