"""What all config classes share: frozen, strict about keys, and errors a person can act on.

`ConfigModel` turns pydantic's `ValidationError` into one `ConfigError` that lists every problem with the path to the
key as it was typed (`stages[0].sources[1].weight`), wherever the model is built: `Stage(batch_size=0)` as much as a
file. Values of models that hold secrets are never repeated in an error.
"""

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel, to_snake

from o41td.errors import ConfigError
from o41td.sizes import parse_size

__all__ = [
    "ConfigModel",
    "Duration",
    "Flag",
    "Listed",
    "Name",
    "Share",
    "Size",
    "Text",
    "positive_number",
    "whole_number",
]


_MAPPING_ERRORS = ("model_type", "model_attributes_type", "dict_type", "dataclass_type")
_SEQUENCE_ERRORS = ("tuple_type", "list_type", "sequence_str", "iterable_type", "is_instance_of")


class ConfigModel(BaseModel):
    """The base of all config classes: frozen, unknown keys refused, snake_case and camelCase keys.

    Raises:
        ConfigError: On construction, for all problems at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    holds_secrets: ClassVar[bool] = False
    """Whether an error must not repeat the values that were given."""

    key_hints: ClassVar[Mapping[str, str]] = {}
    """What to say of a key that people look for here and that lives elsewhere, by its snake_case name."""

    shown_name: ClassVar[str] = "config"
    """What errors call an object of this class."""

    def __new__(cls, /, *given: Any, **_data: Any) -> Self:
        """Refuses values without names in words of the class that was called."""
        if given:
            needed = [name for name, field in cls.model_fields.items() if field.is_required()]
            raise TypeError(f"{cls.__name__} takes its values by name, such as {(needed or [*cls.model_fields])[0]}=…")
        return super().__new__(cls)

    def __init__(self, /, **data: Any) -> None:
        failure: ConfigError | None = None
        try:
            self.__pydantic_validator__.validate_python(data, self_instance=self)
        except ValidationError as error:
            failure = config_error_of(type(self), error)
        if failure is not None:  # outside the handler: pydantic's error holds what was typed, secrets too
            raise failure

    # Tells pydantic that nested values need not be built through this __init__, as its own RootModel does: an error
    # deep in a document then carries its whole path. Without it the paths would still be joined in _problems_of.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Builds the model from a document, as pydantic's method of this name.

        Args:
            obj: A mapping of keys, or an object of this class.
            **options: pydantic's own.

        Raises:
            ConfigError: For all problems at once.
        """
        failure: ConfigError | None = None
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            failure = config_error_of(cls, error)
        raise failure


def config_error_of(cls: type[ConfigModel], error: ValidationError) -> ConfigError:
    """The error to raise instead of pydantic's.

    Args:
        cls: The model that was being built.
        error: What pydantic found.

    Returns:
        One error with all problems, each with its path.
    """
    problems: list[tuple[str, str]] = []
    for entry in error.errors(include_url=False):
        if entry["type"] == "default_factory_not_called":
            continue  # it follows from another problem, which is listed
        problems.extend(_problems_of(cls, entry))
    told: set[str] = set()
    for number, (path, text) in enumerate(problems):
        unknown, names_keys, _ = text.partition("; the keys of a ")
        if names_keys and text in told:
            problems[number] = path, unknown  # the keys are listed above
        told.add(text)
    return ConfigError(f"this {cls.shown_name} does not make sense", problems=dict.fromkeys(problems))


def _problems_of(cls: type[ConfigModel], entry: Any) -> Iterable[tuple[str, str]]:
    """The problems in one of pydantic's errors, as (path, text)."""
    models, path = _walk(cls, entry["loc"])
    cause = entry.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        prefix = _joined(path)
        nested = cause.problems or (("", cause.detail),)
        return [(_prefixed(prefix, inner), text) for inner, text in nested]
    secret = any(model.holds_secrets for model in models)
    if entry["type"] == "missing":
        path[-1] = to_snake(str(path[-1]))
    return [(_joined(path), _text_of(models[-1], entry, cause, secret=secret))]


def _text_of(model: type[ConfigModel], entry: Any, cause: Any, *, secret: bool) -> str:
    """What is wrong with one value and what is allowed."""
    kind = entry["type"]
    shown = "the value given" if secret else _shown(entry.get("input"))
    keys = ", ".join(f"`{name}`" for name in model.model_fields)
    if kind == "extra_forbidden":
        return _unknown_key(model, str(entry["loc"][-1]))
    if kind == "missing":
        return "is missing; it has no default"
    if kind in _MAPPING_ERRORS:
        return f"{shown} is not a table; give {keys}"
    if kind == "too_short":
        return "is empty; give at least one"
    if kind in _SEQUENCE_ERRORS:
        of_one = isinstance(entry.get("input"), Mapping)
        tables = f"; in TOML each begins with [[{entry['loc'][-1]}]], in JSON and YAML they are items" if of_one else ""
        return f"{shown} is not a list; give a list{tables}"
    if kind == "bool_type":
        return f"{shown} is not a bool; give true or false"
    if kind == "frozen_instance":
        return "cannot be changed; make a new one"
    if kind == "literal_error":
        return f"{shown} is not allowed; give {entry['ctx']['expected']}"
    if cause is not None:
        return str(cause)
    return f"{shown} is not allowed: {entry['msg']}"


def _unknown_key(model: type[ConfigModel], key: str) -> str:
    """What to say of a key that the model does not have."""
    name = to_snake(key)
    if name in model.key_hints:
        return model.key_hints[name]
    if name in model.model_fields:
        return f"is given twice, as `{name}` and as `{to_camel(name)}`"
    import difflib  # here, since only a mistake needs it

    close = difflib.get_close_matches(name, list(model.model_fields), n=1, cutoff=0.6)
    if close:
        typed_camel = key != name and key != key.lower()
        return f"unknown key; did you mean `{to_camel(close[0]) if typed_camel else close[0]}`?"
    return (
        f"unknown key; the keys of a {model.shown_name} are {', '.join(f'`{field}`' for field in model.model_fields)}"
    )


def _walk(cls: type[ConfigModel], loc: Iterable[int | str]) -> tuple[list[type[ConfigModel]], list[int | str]]:
    """The models on the way to a place, outermost first, and the place without pydantic's union tags."""
    models = [cls]
    path: list[int | str] = []
    for item in loc:
        if isinstance(item, str) and item.startswith("<"):
            tagged = [model for model in _models_in(_annotation(models[-1], path)) if f"<{model.__name__}>" == item]
            models.extend(tagged)
            continue
        path.append(item)
        if isinstance(item, str):
            found = _models_in(_annotation(models[-1], path))
            if len(found) == 1:
                models.append(found[0])
    return models, path


def _annotation(model: type[ConfigModel], path: list[int | str]) -> Any:
    """The annotation of the field that the last key in a path names."""
    key = next((item for item in reversed(path) if isinstance(item, str)), "")
    for name, field in model.model_fields.items():
        if key in (name, field.alias):
            return field.annotation
    return None


def _models_in(annotation: Any) -> list[type[ConfigModel]]:
    """The config classes that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, ConfigModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _joined(path: Iterable[int | str]) -> str:
    """A path as a person writes it: `stages[0].sources[1].weight`."""
    text = ""
    for item in path:
        text += f"[{item}]" if isinstance(item, int) else f".{item}" if text else str(item)
    return text


def _prefixed(prefix: str, path: str) -> str:
    """A path inside the place that a prefix names."""
    if not prefix or not path:
        return prefix or path
    return f"{prefix}{path}" if path.startswith("[") else f"{prefix}.{path}"


def _shown(value: object) -> str:
    """A value in an error: its repr, cut to a line."""
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def whole_number(low: int, high: int, *, high_name: str | None = None) -> Callable[[object], int]:
    """A validator of an integer in [low, high]; bools, floats and text are refused, NumPy's integers are taken.

    Args:
        low: The least value.
        high: The greatest value.
        high_name: How an error writes `high`; None for no mention of it.
    """
    bounded = f"an integer from {low} to {high_name or high}"
    allowed = bounded if high_name else f"an integer of {low} or more"

    def check(value: object) -> int:
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise ValueError(f"{_shown(value)} is not an integer; give {allowed}")
        number = operator.index(value)  # type: ignore[arg-type]
        if not low <= number <= high:
            raise ValueError(f"{number} is out of range; give {allowed if number < low else bounded}")
        return number

    return check


def share(value: object) -> float:
    """A validator of a number in [0, 1]; bools and text are refused."""
    if isinstance(value, bool | str) or not hasattr(type(value), "__float__") or not 0 <= value <= 1:  # type: ignore[operator]
        raise ValueError(f"{_shown(value)} is no share; give a number from 0 to 1")
    return float(value)  # type: ignore[arg-type]


def positive_number(value: object) -> float:
    """A validator of a finite number above 0; bools and text are refused."""
    if isinstance(value, bool | str) or not hasattr(type(value), "__float__"):
        raise ValueError(f"{_shown(value)} is not a number; give a number above 0")
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{_shown(value)} is not allowed; give a finite number above 0")
    return number


def _text(value: object) -> str:
    """A validator of text that is not empty; paths become text."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not text; give a string")
    if not value.strip() or "\0" in value:
        raise ValueError(f"{_shown(value)} is not allowed; give a string that is not empty")
    return str(value)


def _name(value: object) -> str:
    """A validator of a name: text on one line."""
    text = str(value) if isinstance(value, str) else ""
    if not text.strip() or not text.isprintable():
        raise ValueError(f"{_shown(value)} is not a name; give a string of printable characters that is not empty")
    return text


Text = Annotated[str, BeforeValidator(_text)]
"""Text that is not empty."""

Name = Annotated[str, BeforeValidator(_name)]
"""A name: text on one line that is not empty."""

Flag = Annotated[bool, Field(strict=True)]
"""True or False, nothing that looks like it."""

Size = Annotated[int, BeforeValidator(parse_size)]
"""Bytes, given as an int or as text such as "2GB"."""

Share = Annotated[float, BeforeValidator(share)]
"""A number from 0 to 1."""

Duration = Annotated[float, BeforeValidator(positive_number)]
"""Seconds above 0."""

Listed = AfterValidator(tuple)
"""Keeps a sequence as a tuple, whatever sequence was given."""
