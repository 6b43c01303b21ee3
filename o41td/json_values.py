"""What a cell of a shard is called in JSON: for `o41td trace --show` and `o41td inspect`."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["json_value"]


def json_value(value: Any) -> Any:
    """Returns a Python value as JSON can hold it: bytes as base64, what JSON has no form for as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return str(value)
