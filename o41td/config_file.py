"""Reads a config file into a plain document. The parsers are imported when they are needed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from o41td.errors import ConfigError
from o41td.plain_json import parse_plain_json, refuse_deep_nesting

__all__ = ["read_document"]

_MAX_CHARACTERS = 1 << 26


def read_document(path: str | os.PathLike[str], *, noun: str = "config") -> dict[str, Any]:
    """Reads a `.json`, `.toml`, `.yaml` or `.yml` file.

    Args:
        path: The file; its suffix says what it holds.
        noun: What errors call it: the "config" file, unless it is another.

    Returns:
        The document.

    Raises:
        ConfigError: There is no such file, its suffix is unknown, or it cannot be parsed.
    """
    file = Path(path)
    parse = _PARSERS.get(file.suffix.lower())
    if os.path.isdir(file):  # pathlib's own raises where a folder may not be entered
        raise ConfigError(f"this is a folder, not a {noun} file", where=str(file))
    if parse is None and not os.path.exists(file):
        raise ConfigError("there is no such file", where=str(file), advice="Check the path")
    if parse is None:
        raise ConfigError(
            f"the {noun} file's suffix {file.suffix!r} is unknown",
            where=str(file),
            advice=f"Name it with one of {', '.join(_PARSERS)}",
        )
    try:
        with file.open(encoding="utf-8-sig") as opened:
            text = opened.read(_MAX_CHARACTERS + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"the {noun} file cannot be read: {reason}", where=str(file)) from None
    except UnicodeDecodeError:
        raise ConfigError(f"the {noun} file is not UTF-8 text", where=str(file)) from None
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"the {noun} file is longer than {_MAX_CHARACTERS} characters", where=str(file))
    try:
        document = parse(text)
        refuse_deep_nesting(document)
    except RecursionError:
        raise ConfigError(f"the {noun} file cannot be parsed: it is nested too deeply", where=str(file)) from None
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the {noun} file cannot be parsed: {reason}", where=str(file)) from None
    if not isinstance(document, dict):
        raise ConfigError(f"the {noun} file does not hold a table of keys", where=str(file))
    return document


def _parse_json(text: str) -> Any:
    """JSON in which a key may not stand twice."""
    if not text.strip():
        raise ValueError("it is empty")
    return parse_plain_json(text, max_bytes=_MAX_CHARACTERS)


def _parse_toml(text: str) -> Any:
    """TOML; its own errors are ValueErrors that name the line."""
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if "Cannot declare" in str(error):
            raise ValueError(f"{error}: a list of tables is written [[name]], not [name], each time") from None
        raise


def _parse_yaml(text: str) -> Any:
    """YAML without tags that build objects."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f" (at line {mark.line + 1}, column {mark.column + 1})"
        context = f"{error.context}, " if error.context else ""
        raise ValueError(f"{context}{error.problem}{place}. Globs and names with other signs need quotes") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".json": _parse_json,
    ".toml": _parse_toml,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
}
