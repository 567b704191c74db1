"""The ``storage.*`` options are checked before the first request."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore.store
import pytest
from obstore.exceptions import BaseError

from spark_upsert.errors import OptionError
from spark_upsert.store.object_store import ObjectStore
from spark_upsert.store.open import open_store
from spark_upsert.store.settings import (
    CLIENT_OPTIONS,
    CLOUD_OPTIONS,
    OWN_OPTIONS,
    RETRIES_MAX,
    SCHEMES,
    Cloud,
    ObjectSettings,
)

S3 = "s3://bucket/table"
URLS = {
    Cloud.S3: S3,
    Cloud.GCS: "gs://bucket/table",
    Cloud.AZURE: "az://container/table",
}


@pytest.mark.parametrize(
    ("url", "given", "config"),
    [
        (S3, {"endpoint": "https://a"}, {"endpoint": "https://a"}),
        (S3, {"aws_endpoint": "https://a"}, {"endpoint": "https://a"}),
        (S3, {"AWS_ENDPOINT_URL": "https://a"}, {"endpoint": "https://a"}),
        (S3, {"accessKeyId": "me"}, {"access_key_id": "me"}),
        (S3, {"virtual_hosted_style_request": True}, {"virtual_hosted_style_request": "true"}),
        ("s3a://bucket/table", {"region": "eu-west-1"}, {"region": "eu-west-1"}),
        (URLS[Cloud.GCS], {"google_bearer_token": "t"}, {"bearer_token": "t"}),
        (URLS[Cloud.AZURE], {"azure_storage_account_name": "a"}, {"account_name": "a"}),
        (URLS[Cloud.AZURE], {"azure_client_id": "a"}, {"client_id": "a"}),
        (URLS[Cloud.AZURE], {"access_key": "a"}, {"account_key": "a"}),
    ],
)
def test_an_option_has_one_name(url: str, given: dict[str, str], config: dict[str, str]) -> None:
    assert ObjectSettings.of(url, given).config == config


@pytest.mark.parametrize(
    ("url", "name", "meant"),
    [
        (S3, "endpiont", "storage.endpoint"),
        (S3, "acces_key_id", "storage.access_key_id"),
        (S3, "virtual_hosted_style", "storage.virtual_hosted_style_request"),
        (S3, "cache_byte", "storage.cache_bytes"),
        (URLS[Cloud.AZURE], "acount_name", "storage.account_name"),
        (URLS[Cloud.GCS], "service_acount", "storage.service_account"),
    ],
)
def test_an_unknown_option_names_the_nearest(url: str, name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"'storage.{name}'") as caught:
        open_store(url, {name: "hush"})
    assert caught.value.hint == f"Did you mean '{meant}'?"
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"account_key": "hush"}, r"unknown option 'storage\.account_key'"),  # Of another cloud.
        ({"bucket": "another"}, "unknown option"),
        ({"endpoint": "https://a", "aws_endpoint": "https://b"}, "given twice"),
        ({"endpoint": "http://127.0.0.1:9000"}, "without TLS"),
        ({"cache_bytes": "-1"}, r"'storage\.cache_bytes' expects"),
        ({"cache_bytes": "many"}, r"'storage\.cache_bytes' expects"),
        ({"max_retries": "1.5"}, r"'storage\.max_retries' expects"),
        ({"retry_timeout": "soon"}, r"'storage\.retry_timeout' expects"),
        ({"retry_timeout": "90"}, r"'storage\.retry_timeout' expects"),
        ({"timeout": "-3s"}, r"'storage\.timeout' expects"),
        ({"allow_http": "yes"}, r"'storage\.allow_http' expects"),
    ],
)
def test_an_option_is_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        open_store(S3, given)


@pytest.mark.parametrize(
    ("name", "value", "setting"),
    [
        ("cache_bytes", "1024", 1024),
        ("cache_bytes", "8g", 8 << 30),
        ("cache_bytes", "500 MiB", 500 << 20),
        ("cache_bytes", 7, 7),
        ("cache_dir", "/disk", "/disk"),
        ("max_retries", "0", 0),
        ("retry_timeout", "2m", 120.0),
        ("retry_timeout", "0.5 h", 1800.0),
        ("retry_timeout", "250ms", 0.25),
    ],
)
def test_numbers_have_units(name: str, value: object, setting: object) -> None:
    target = {"max_retries": "retries_max", "retry_timeout": "retry_seconds_max"}.get(name, name)
    assert getattr(ObjectSettings.of(S3, {name: value}), target) == setting


def test_client_options_are_typed_and_have_defaults() -> None:
    given = {"timeout": "30s", "allow_http": "true", "user_agent": "me"}
    typed = {"timeout": timedelta(seconds=30), "allow_http": True, "user_agent": "me"}
    assert ObjectSettings.of(S3, given).client == typed
    settings = ObjectSettings.of(S3, {})
    assert (settings.retries_max, settings.client, settings.cache_bytes) == (RETRIES_MAX, {}, None)


def test_the_documentation_names_every_option_and_no_other() -> None:
    text = (Path(__file__).parents[2] / "docs" / "object-stores.md").read_text()
    named = set(re.findall(r"`storage\.([a-z0-9_]+)`", text)) - {"aws_endpoint"}
    known = {*CLIENT_OPTIONS, *OWN_OPTIONS}.union(*CLOUD_OPTIONS.values())
    assert named == known


def complaint(url: str, **options: Any) -> str:
    """Return what obstore says against some options, if anything."""
    make: Any = obstore.store.from_url  # Its overloads take the options of one cloud each.
    try:
        make(url, **options)
    except BaseError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("cloud", Cloud)
def test_obstore_knows_every_option_of_a_cloud(cloud: Cloud) -> None:
    # It may dislike the value, but it knows the name.
    for name in CLOUD_OPTIONS[cloud]:
        assert "UnknownConfigurationKey" not in complaint(URLS[cloud], config={name: "1"}), name


def test_obstore_knows_every_client_option() -> None:
    values = {"allow_http": True, "pool_max_idle_per_host": "1", "proxy_url": "http://a"}
    for name in CLIENT_OPTIONS:
        value = values.get(name, timedelta(seconds=1) if "timeout" in name else "true")
        text = complaint(S3, client_options={name: value})
        assert not text or "certificate" in text, name


def test_every_scheme_opens() -> None:
    for scheme, cloud in SCHEMES.items():
        options = {"account_name": "account"} if cloud is Cloud.AZURE else {}
        store = open_store(f"{scheme}://bucket/table/", options)
        assert isinstance(store, ObjectStore)
        assert store.url == f"{scheme}://bucket/table"
