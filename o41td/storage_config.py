"""How to reach an object store: `StorageConfig`. An argument of open, never part of a config or a checkpoint."""

import json
import os
import re
from collections.abc import Callable
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Secret, SecretStr, field_validator, model_validator

from o41td.config_file import read_document
from o41td.config_model import ConfigModel, Flag, positive_number, whole_number
from o41td.errors import ConfigError

__all__ = ["StorageConfig"]

_HIDDEN = (Secret, SecretStr)
_OWN_SCHEMES = ("file", "http", "https", "memory", "s3", "s3a")


def _secret(value: object) -> SecretStr:
    """A validator of a credential; what was given is never repeated."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str) or not text.strip():
        raise ValueError("a credential is a string that is not empty")
    return SecretStr(text)


def _setting(value: object) -> str:
    """A validator of a setting; a credential may have been put here by mistake, so it is not repeated either."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("is not a string, or is empty; give a string")
    return value


def _quiet(validator: Callable[[object], Any], want: str) -> Callable[[object], Any]:
    """The same validator, which repeats no value either."""

    def validate(value: object) -> Any:
        try:
            return validator(value)
        except ValueError:
            pass
        raise ValueError(f"is not {want}")

    return validate


def _arguments(value: object) -> Secret[dict[str, dict[str, Any]]]:
    """A validator of arguments for file systems; they may hold credentials, so none is repeated."""
    given = value.get_secret_value() if isinstance(value, Secret) else value
    try:
        plain = json.loads(json.dumps(given, allow_nan=False))
    except (TypeError, ValueError):
        plain = None
    if plain is None or plain != given:
        raise ValueError("is not made of numbers, strings, lists and dicts")
    if not isinstance(plain, dict) or not all(isinstance(arguments, dict) for arguments in plain.values()):
        raise ValueError('is not a dict of dicts, such as {"gs": {"token": "..."}}')
    for scheme in plain:
        if scheme in _OWN_SCHEMES or not re.fullmatch("[a-z][a-z0-9+.-]*", scheme):
            raise ValueError("names what is no protocol, or one that has settings of its own, as s3 and http have")
    return Secret(plain)


_COUNT = _quiet(whole_number(1, 4096), "a whole number from 1 to 4096")
_SECONDS = _quiet(positive_number, "a number above 0")
_Setting = Annotated[str, BeforeValidator(_setting)]
_Secret = Annotated[SecretStr, BeforeValidator(_secret)]
_Arguments = Annotated[Secret[dict[str, dict[str, Any]]], BeforeValidator(_arguments)]


class StorageConfig(ConfigModel):
    """Settings of object stores. Nothing is read from the environment unless asked for.

    Credentials never appear in `repr`, `str`, errors or `to_document`. `secret_record` is the one way out.

    Attributes:
        endpoint_url: The store's URL; AWS's own if left out.
        region: The region.
        access_key_id: The key's id.
        secret_access_key: The key.
        session_token: The token of temporary credentials.
        virtual_hosted_style: Whether the bucket is in the host name instead of the path.
        anonymous: Whether requests are not signed.
        ambient_credentials: Whether environment, profile files and instance metadata may be asked for credentials.
        max_requests_in_flight: How many requests all workers of a loader may have under way at once.
        give_up_after_s: How long a request is tried again and again, in seconds without a byte.
        filesystems: Of protocols other than S3 and HTTP, what fsspec's file system is made with, credentials among it:
            `{"gs": {"token": "key.json"}}`. Hidden as credentials are.
    """

    model_config = ConfigDict(hide_input_in_errors=True)
    holds_secrets = True
    shown_name = "storage config"

    endpoint_url: _Setting | None = None
    region: _Setting | None = None
    access_key_id: _Secret | None = None
    secret_access_key: _Secret | None = None
    session_token: _Secret | None = None
    virtual_hosted_style: Flag = False
    anonymous: Flag = False
    ambient_credentials: Flag = False
    max_requests_in_flight: Annotated[int, BeforeValidator(_COUNT)] = 64
    give_up_after_s: Annotated[float, BeforeValidator(_SECONDS)] = 900.0
    filesystems: _Arguments = Secret({})

    @field_validator("endpoint_url", mode="after")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parts = urlsplit(value)
                usable = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
            except ValueError:
                usable = False
            if not usable:
                raise ValueError(
                    'is not a store\'s URL; give "http://host:port" or "https://host", without credentials'
                )
        return value

    @model_validator(mode="after")
    def _check_credentials(self) -> Self:
        key_parts = (self.access_key_id is not None, self.secret_access_key is not None)
        problems = []
        if any(key_parts) and not all(key_parts):
            missing = "secret_access_key" if key_parts[0] else "access_key_id"
            problems.append((missing, "is missing; `access_key_id` and `secret_access_key` go together"))
        if self.session_token is not None and not any(key_parts):
            problems.append(("session_token", "is given without `access_key_id` and `secret_access_key`"))
        ways = [
            name
            for name, given in (
                ("access_key_id", any(key_parts)),
                ("anonymous", self.anonymous),
                ("ambient_credentials", self.ambient_credentials),
            )
            if given
        ]
        if len(ways) > 1:
            problems.append(("", f"{' and '.join(f'`{way}`' for way in ways)} exclude each other; give one of them"))
        if problems:
            raise ConfigError(problems=problems)
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file of these settings, `.toml` or `.json`; let nobody else read it if it holds credentials.

        Args:
            path: The file.

        Raises:
            ConfigError: There is no such file, it cannot be parsed, or it does not make sense; no value is repeated.
        """
        if not os.fspath(path).lower().endswith((".toml", ".json")):  # YAML's errors would repeat lines
            raise ConfigError("storage settings are read from a .toml or .json file", where=os.fspath(path))
        document = read_document(path, noun="storage")
        try:
            return cls.model_validate(document)
        except ConfigError as error:
            problems, detail = error.problems, error.detail
        finally:
            del document  # a traceback that shows local variables shows no credentials
        raise ConfigError(detail, where=os.fspath(path), problems=problems)

    def to_document(self) -> dict[str, Any]:
        """The settings without the credentials: a new JSON-able dict."""
        return {
            name: value for name, value in self.secret_record().items() if not isinstance(getattr(self, name), _HIDDEN)
        }

    def secret_record(self) -> dict[str, Any]:
        """The settings with the credentials in clear, to send to a worker over its socket and nowhere else."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {
            name: value.get_secret_value() if isinstance(value, Secret | SecretStr) else value for name, value in values
        }
