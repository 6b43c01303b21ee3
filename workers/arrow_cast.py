"""Arrow's cast of binary values, without pyarrow.compute.

`Array.cast` imports that module when it is first called, which builds a documented Python function for each of Arrow's:
60 to 90 ms in the middle of a stream, where the module that they call takes 10.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

__all__ = ["large_binary_of"]


def large_binary_of(values: Any) -> Any:
    """Returns binary values or views as a `pyarrow.LargeBinaryArray`, their bytes end to end."""
    call_function, options = _cast_to_large_binary()
    return call_function("cast", [values], options)


@cache
def _cast_to_large_binary() -> tuple[Any, Any]:
    try:
        from pyarrow._compute import CastOptions, call_function
    except ImportError:  # they have always been there, and are public in the module that is left out
        from pyarrow.compute import CastOptions, call_function
    return call_function, CastOptions.safe(pa.large_binary())
