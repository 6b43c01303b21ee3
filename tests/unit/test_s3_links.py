"""Links that are signed without a client are those that botocore's client signs."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import botocore.session
import pytest
from botocore.config import Config

from o41td.workers.object_store import StorageSettings
from o41td.workers.s3_store import own_link

SETTINGS = StorageSettings(
    endpoint_url="https://minio.lab:9000", region="eu", access_key_id="the-key-id", secret_access_key="secret"
)


@functools.cache
def client_of(session_token: str | None) -> Any:
    """Botocore's own client."""
    return botocore.session.Session().create_client(
        "s3",
        region_name=SETTINGS.region,
        endpoint_url=SETTINGS.endpoint_url,
        aws_access_key_id=SETTINGS.access_key_id,
        aws_secret_access_key=SETTINGS.secret_access_key,
        aws_session_token=session_token,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )


@pytest.mark.parametrize("token", [None, "a/token+="])
@pytest.mark.parametrize(
    "key", ["a/b.parquet", "a b%20#+?[*]~'()", "ä/ö", "a//b/", "../a/./b", "k=v&x"], ids=lambda key: key[:3]
)
def test_the_same_link(key, token):
    """Path and query are the same, the signature too once both were made in one second."""
    settings = replace(SETTINGS, session_token=token)
    client = client_of(token)
    for _ in range(50):
        own = own_link(f"s3://bucket.name/{key}", settings, valid_s=3600)
        assert own is not None
        params = {"Bucket": "bucket.name", "Key": key}
        ours, theirs = urlsplit(own), urlsplit(client.generate_presigned_url("get_object", params, 3600))
        if parse_qs(ours.query)["X-Amz-Date"] == parse_qs(theirs.query)["X-Amz-Date"]:
            break
    assert (ours.scheme, ours.netloc, ours.path) == (theirs.scheme, theirs.netloc, theirs.path)
    assert parse_qs(ours.query) == parse_qs(theirs.query)


@pytest.mark.parametrize(
    "keys",
    [
        {"endpoint_url": None},
        {"region": None},
        {"access_key_id": None, "secret_access_key": None, "anonymous": True},
        {"access_key_id": None, "secret_access_key": None, "ambient_credentials": True},
        {"virtual_hosted_style": True},
    ],
    ids="-".join,
)
def test_what_takes_a_client_is_left_to_it(keys):
    """Who has to be asked, or as whom, is not guessed here."""
    assert own_link("s3://bucket/a", replace(SETTINGS, **keys), valid_s=60) is None
    assert own_link("s3://arn:aws:s3:eu:1:accesspoint/x", SETTINGS, valid_s=60) is None
