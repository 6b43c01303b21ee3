"""A worker as a program: ``python -P -m o41td.workers --socket N --worker K --owner PID``.

Started so only where the coordinator cannot be forked (`o41td.workers.forking`).
"""

import argparse
import sys

from o41td.workers.working import work


def main() -> int:
    """Works until the coordinator is gone."""
    parser = argparse.ArgumentParser(prog="o41td.workers")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--worker", type=int, required=True, help="its number, for those who read a process list")
    parser.add_argument("--owner", type=int, required=True, help="the process that the loader is for")
    arguments = parser.parse_args()
    return work(arguments.socket, owner_pid=arguments.owner)


if __name__ == "__main__":
    sys.exit(main())
