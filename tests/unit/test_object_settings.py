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
    with pytest.raises(OptionError) as caught:
        open_store(url, {name: "hush"})
    assert f"'storage.{name}'" in caught.value.message
    assert caught.value.hint == f"Did you mean '{meant}'?"
    assert "hush" not in str(caught.value)


def test_an_option_of_another_cloud_is_unknown() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'storage\.account_key'"):
        open_store(S3, {"account_key": "hush"})


def test_the_bucket_stands_in_the_path_only() -> None:
    with pytest.raises(OptionError, match="unknown option"):
        open_store(S3, {"bucket": "another"})


def test_an_option_under_two_names_is_refused() -> None:
    with pytest.raises(OptionError, match="given twice"):
        open_store(S3, {"endpoint": "https://a", "aws_endpoint": "https://b"})


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_bytes", "-1"),
        ("cache_bytes", "many"),
        ("max_retries", "1.5"),
        ("retry_timeout", "soon"),
        ("retry_timeout", "90"),
        ("timeout", "-3s"),
        ("allow_http", "yes"),
    ],
)
def test_a_malformed_value_is_refused_with_its_form(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=rf"'storage\.{name}' expects"):
        open_store(S3, {name: value})


def test_client_options_are_typed() -> None:
    settings = ObjectSettings.of(S3, {"timeout": "30s", "allow_http": "true", "user_agent": "me"})
    assert settings.client == {
        "timeout": timedelta(seconds=30),
        "allow_http": True,
        "user_agent": "me",
    }


def test_without_options_there_are_defaults() -> None:
    settings = ObjectSettings.of(S3, {})
    assert (settings.retries_max, settings.client, settings.cache_bytes) == (RETRIES_MAX, {}, None)


def test_plain_http_must_be_allowed() -> None:
    with pytest.raises(OptionError, match="without TLS") as caught:
        open_store(S3, {"endpoint": "http://127.0.0.1:9000"})
    assert "storage.allow_http" in caught.value.hint


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hdfs://host/table", "'hdfs://', which is not supported"),
        ("https://bucket.s3.amazonaws.com/table", "is not supported"),
        ("memory:///table", "is not supported"),
        ("s3:///table", "names no bucket"),
        ("s3://bucket//table", "has a '/' too many"),
    ],
)
def test_a_path_of_no_object_storage_is_refused(url: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        open_store(url)


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


@pytest.mark.parametrize(
    ("cloud", "name"), [(cloud, name) for cloud in Cloud for name in sorted(CLOUD_OPTIONS[cloud])]
)
def test_obstore_knows_every_option(cloud: Cloud, name: str) -> None:
    # It may dislike the value, but it knows the name.
    assert "UnknownConfigurationKey" not in complaint(URLS[cloud], config={name: "1"})


@pytest.mark.parametrize("name", sorted(CLIENT_OPTIONS))
def test_obstore_knows_every_client_option(name: str) -> None:
    values = {"allow_http": True, "pool_max_idle_per_host": "1", "proxy_url": "http://a"}
    value = values.get(name, timedelta(seconds=1) if "timeout" in name else "true")
    found = complaint(S3, client_options={name: value})
    assert not found or "certificate" in found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_opens(scheme: str) -> None:
    options = {"account_name": "account"} if SCHEMES[scheme] is Cloud.AZURE else {}
    assert open_store(f"{scheme}://bucket/table", options).url == f"{scheme}://bucket/table"
