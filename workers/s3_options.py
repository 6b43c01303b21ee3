"""How s3fs is told what a StorageConfig says: by those who read and by those who write, so that both reach the same."""

from __future__ import annotations

from typing import Any

from o41td.workers.object_store import StorageSettings
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["s3_options"]


def s3_options(settings: StorageSettings, **client_settings: Any) -> dict[str, Any]:
    """Returns the arguments of `s3fs.S3FileSystem`.

    Args:
        settings: How to reach stores. Keys count where neither `anonymous` nor `ambient_credentials` is set.
        **client_settings: More of botocore's `Config`.

    Raises:
        StoreFault: There are to be no credentials.
    """
    if not (settings.access_key_id or settings.anonymous or settings.ambient_credentials):
        why = "no credentials are given: give keys, or set `anonymous` or `ambient_credentials`"
        raise StoreFault(FaultKind.REFUSED, why)
    signs = not settings.anonymous and not settings.ambient_credentials
    return {
        "anon": settings.anonymous,
        "endpoint_url": settings.endpoint_url,
        "key": settings.access_key_id if signs else None,
        "secret": settings.secret_access_key if signs else None,
        "token": settings.session_token if signs else None,
        "client_kwargs": {"region_name": settings.region} if settings.region else {},
        "config_kwargs": {
            **({} if settings.anonymous else {"signature_version": "s3v4"}),
            "s3": {"addressing_style": "virtual" if settings.virtual_hosted_style else "path"},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            **client_settings,
        },
        "skip_instance_cache": True,
        "use_listings_cache": False,
    }
