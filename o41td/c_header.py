"""Where the C header is that the package comes with: `o41td.h`, a client of served loaders."""

from pathlib import Path

__all__ = ["get_include"]


def get_include() -> str:
    """Returns the folder of `o41td.h`, for the `-I` of a C compiler."""
    return str(Path(__file__).parent / "include")
