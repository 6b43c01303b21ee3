"""Storage settings: credentials never show."""

import pickle
import traceback

import pytest

from o41td.config import StorageConfig
from o41td.errors import ConfigError

SECRET = "hunter2-hunter2"


def test_credentials_never_show():
    """repr, str and the document hold none of them; the record for a worker's socket does."""
    config = StorageConfig(
        endpoint_url="http://localhost:9000",
        region="eu",
        access_key_id=SECRET,
        secret_access_key=SECRET,
        session_token=SECRET,
        filesystems={"gs": {"token": SECRET}},
    )
    for text in (repr(config), str(config), f"{config}", str(config.to_document()), str(config.model_dump())):
        assert SECRET not in text
    assert config.to_document() == {
        "endpoint_url": "http://localhost:9000",
        "region": "eu",
        "virtual_hosted_style": False,
        "anonymous": False,
        "ambient_credentials": False,
        "max_requests_in_flight": 64,
        "give_up_after_s": 900.0,
    }
    record = config.secret_record()
    assert [record[key] for key in ("access_key_id", "secret_access_key", "session_token")] == [SECRET] * 3
    assert record["filesystems"] == {"gs": {"token": SECRET}}
    assert StorageConfig.model_validate(record) == config
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"access_key_id": SECRET}, "secret_access_key"),
        ({"secretAccessKey": SECRET}, "access_key_id"),
        ({"session_token": SECRET}, "session_token"),
        ({"access_key_id": SECRET, "secret_access_key": SECRET, "anonymous": True}, ""),
        ({"anonymous": True, "ambient_credentials": True}, ""),
        ({"access_key_id": [SECRET]}, "access_key_id"),
        ({"region": [SECRET]}, "region"),
        ({"anonymous": SECRET}, "anonymous"),
        ({"max_requests_in_flight": SECRET}, "max_requests_in_flight"),
        ({"max_requests_in_flight": 0}, "max_requests_in_flight"),
        ({"give_up_after_s": SECRET}, "give_up_after_s"),
        ({"give_up_after_s": float("inf")}, "give_up_after_s"),
        ({"secret_acess_key": SECRET}, "secret_acess_key"),
        ({"endpoint_url": f"http://user:{SECRET}@host"}, "endpoint_url"),
        ({"endpoint_url": SECRET}, "endpoint_url"),
        ({"endpoint_url": "http://[" + SECRET}, "endpoint_url"),
        ({"endpoint_url": "ftp://host"}, "endpoint_url"),
        ({"access_key_id": ""}, "access_key_id"),
        ({"filesystems": SECRET}, "filesystems"),
        ({"filesystems": {"gs": SECRET}}, "filesystems"),
        ({"filesystems": {"gs": {"token": {SECRET}}}}, "filesystems"),
        ({"filesystems": {"s3": {"secret": SECRET}}}, "filesystems"),
        ({"filesystems": {SECRET.upper(): {}}}, "filesystems"),
    ],
)
def test_refusals_repeat_no_value(keys, path):
    """Whatever is wrong, no value comes back in the error, its fields or its traceback."""
    with pytest.raises(ConfigError) as caught:
        StorageConfig(**keys)
    error = caught.value
    assert [problem[0] for problem in error.problems] == [path]
    shown = "".join(traceback.format_exception(error)) + repr(error) + str(error.fields())
    assert SECRET not in shown
    assert error.__context__ is None


def test_a_file_that_is_not_there_is_no_config(tmp_path):
    """The file of storage settings is told apart from a config's."""
    with pytest.raises(ConfigError, match="the storage file cannot be read: No such file"):
        StorageConfig.load(tmp_path / "s.toml")


def test_a_typo_in_a_credential_is_helped():
    """The key is named and its like suggested."""
    with pytest.raises(ConfigError, match="did you mean `secret_access_key`"):
        StorageConfig(secret_acess_key=SECRET)
