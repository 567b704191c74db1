"""The ``storage.*`` options for a table in a bucket, checked before the first request.

Names are obstore's, with or without the cloud's prefix. Errors show only numeric values, because
others may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from spark_upsert.core.durations import EXPECTED, try_parse_ms
from spark_upsert.errors import OptionError

RETRIES_MAX = 10
"""Default maximum for retries: about a minute with doubling pauses."""

RETRY_SECONDS_MAX = 180.0
"""Default maximum time for retries: signatures become invalid after five minutes."""


class Cloud(Enum):
    """An object storage provider; its value lists the accepted prefixes for option names."""

    S3 = ("aws",)
    GCS = ("google",)
    AZURE = ("azurestorage", "azure")


SCHEMES = {
    "s3": Cloud.S3,
    "s3a": Cloud.S3,
    "gs": Cloud.GCS,
    "az": Cloud.AZURE,
    "azure": Cloud.AZURE,
    "abfs": Cloud.AZURE,
    "abfss": Cloud.AZURE,
}

CLOUD_OPTIONS: Mapping[Cloud, frozenset[str]] = {
    Cloud.S3: frozenset(
        {
            "access_key_id",
            "checksum_algorithm",
            "container_authorization_token_file",
            "container_credentials_full_uri",
            "container_credentials_relative_uri",
            "default_region",
            "disable_bulk_delete",
            "disable_tagging",
            "endpoint",
            "imdsv1_fallback",
            "metadata_endpoint",
            "region",
            "request_payer",
            "role_arn",
            "role_session_name",
            "s3_express",
            "secret_access_key",
            "server_side_encryption",
            "session_token",
            "skip_signature",
            "sse_bucket_key_enabled",
            "sse_customer_key_base64",
            "sse_kms_key_id",
            "unsigned_payload",
            "virtual_hosted_style_request",
            "web_identity_token_file",
        }
    ),
    Cloud.GCS: frozenset(
        {
            "application_credentials",
            "base_url",
            "bearer_token",
            "service_account",
            "service_account_key",
            "skip_signature",
        }
    ),
    Cloud.AZURE: frozenset(
        {
            "account_key",
            "account_name",
            "authority_host",
            "client_id",
            "client_secret",
            "disable_tagging",
            "endpoint",
            "fabric_cluster_identifier",
            "fabric_session_token",
            "fabric_token_service_url",
            "fabric_workload_host",
            "federated_token_file",
            "msi_endpoint",
            "msi_resource_id",
            "object_id",
            "sas_key",
            "skip_signature",
            "tenant_id",
            "token",
            "use_azure_cli",
            "use_emulator",
            "use_fabric_endpoint",
        }
    ),
}
"""Options per cloud. The path names bucket and container; conditional put is required."""

_ALIASES = {
    Cloud.S3: {"endpoint_url": "endpoint", "token": "session_token"},
    Cloud.GCS: {"service_account_path": "service_account"},
    Cloud.AZURE: {"access_key": "account_key", "sas_token": "sas_key"},
}

_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """The checked options for one table in a bucket."""

    cloud: Cloud
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings for this cloud only, credentials included."""
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options for the HTTP client; a proxy address may contain a password."""
    retries_max: int = RETRIES_MAX
    retry_seconds_max: float = RETRY_SECONDS_MAX
    cache_bytes: int | None = None
    cache_dir: str | None = None

    @classmethod
    def of(cls, url: str, options: Mapping[str, Any]) -> ObjectSettings:
        """Check a table's options."""
        cloud = cloud_of(url)
        canonical_options: dict[str, str] = {}
        for name, value in options.items():
            canonical = _canonical(cloud, name)
            if canonical in canonical_options:
                raise OptionError(
                    f"the option 'storage.{canonical}' is given twice, once as '{name}'.",
                    hint="keep one of them.",
                    option=f"storage.{canonical}",
                )
            canonical_options[canonical] = (
                str(value).lower() if isinstance(value, bool) else str(value)
            )
        _require_allow_http(canonical_options)
        return cls(
            cloud=cloud,
            config={
                name: canonical_options[name]
                for name in CLOUD_OPTIONS[cloud] & canonical_options.keys()
            },
            client={
                n: parse(n, canonical_options[n])
                for n, parse in CLIENT_OPTIONS.items()
                if n in canonical_options
            },
            **{
                target: parse(name, canonical_options[name])
                for name, (target, parse) in OWN_OPTIONS.items()
                if name in canonical_options
            },
        )


def cloud_of(url: str) -> Cloud:
    """Return a path's cloud; raises `OptionError`."""
    parts = urlsplit(url)
    cloud = SCHEMES.get(parts.scheme)
    if cloud is None:
        scheme = url[: url.index(":") + 1] + ("//" if "://" in url else "/")
        raise OptionError(
            f"the path '{url}' begins with '{scheme}', which is not supported.",
            hint="give a folder of a local or mounted file system (/lake/orders or "
            f"file:///lake/orders), or a bucket: {', '.join(f'{s}://' for s in SCHEMES)}. "
            "The address of a server goes into 'storage.endpoint'.",
            option="path",
        )
    if not parts.netloc:
        raise OptionError(
            f"the path '{url}' names no bucket.",
            hint=f"give it as {parts.scheme}://bucket/folder.",
            option="path",
        )
    if "//" in parts.path.rstrip("/"):
        raise OptionError(
            f"the path '{url}' has a '/' too many: a folder of a bucket has a name.",
            hint=f"write {parts.scheme}://bucket/folder/table.",
            option="path",
        )
    named = parts.netloc.rpartition("@")[2] if cloud is Cloud.AZURE else parts.netloc
    if ":" in parts.netloc or "@" in named:
        raise OptionError(
            f"the path '{parts.scheme}://***{parts.path}' has credentials or a port where the "
            "bucket is named.",
            hint="credentials and the address of a server go into 'storage' options "
            "(docs/object-stores.md); what Spark shows of a query includes the path.",
            option="path",
        )
    return cloud


def _canonical(cloud: Cloud, name: str) -> str:
    """Return an option's canonical name."""
    known_options = CLOUD_OPTIONS[cloud] | CLIENT_OPTIONS.keys() | OWN_OPTIONS.keys()
    by_fold = {_fold(option): option for option in known_options}
    by_fold |= {_fold(alias): option for alias, option in _ALIASES[cloud].items()}
    folded = _fold(name)
    for prefix in ("", *cloud.value):
        if folded.startswith(prefix) and folded.removeprefix(prefix) in by_fold:
            return by_fold[folded.removeprefix(prefix)]
    raise OptionError.unknown(f"storage.{name}", [f"storage.{option}" for option in known_options])


def _fold(name: str) -> str:
    """Return the form in which names are compared, as for all other options."""
    return name.lower().replace("-", "").replace("_", "")


def _require_allow_http(given: Mapping[str, str]) -> None:
    address = given.get("endpoint") or given.get("base_url") or ""
    if address.lower().startswith("http://") and given.get("allow_http", "").lower() != "true":
        raise OptionError(
            f"'storage.endpoint' is '{address}', but connections without TLS are not allowed.",
            hint="give an https:// address, or set 'storage.allow_http' to 'true'.",
            option="storage.allow_http",
        )


def _text(name: str, value: str) -> str:
    return value


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise OptionError.invalid(f"storage.{name}", value, "true or false")
    return value.lower() == "true"


def _count(name: str, value: str) -> int:
    if not value.isdecimal():
        raise OptionError.invalid(f"storage.{name}", value, "a count, 0 or more")
    return int(value)


def _bytes(name: str, value: str) -> int:
    match = re.fullmatch(r"(\d+) ?([kmgt]?)(?:i?b)?", value.strip().lower())
    if match is None:
        raise OptionError.invalid(f"storage.{name}", value, "bytes, such as 500m or 8g")
    return int(match[1]) * _BYTES[match[2]]


def _seconds(name: str, value: str) -> float:
    duration = try_parse_ms(value)
    if duration is None:
        raise OptionError.invalid(f"storage.{name}", value, EXPECTED)
    return duration / 1000


def _duration(name: str, value: str) -> timedelta:
    return timedelta(seconds=_seconds(name, value))


CLIENT_OPTIONS: Mapping[str, Callable[[str, str], Any]] = {
    "allow_http": _boolean,
    "allow_invalid_certificates": _boolean,
    "connect_timeout": _duration,
    "pool_idle_timeout": _duration,
    "pool_max_idle_per_host": _text,
    "proxy_ca_certificate": _text,
    "proxy_excludes": _text,
    "proxy_url": _text,
    "timeout": _duration,
    "user_agent": _text,
}
"""Options for the HTTP client, the same for every cloud."""

OWN_OPTIONS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "cache_bytes": ("cache_bytes", _bytes),
    "cache_dir": ("cache_dir", _text),
    "max_retries": ("retries_max", _count),
    "retry_timeout": ("retry_seconds_max", _seconds),
}
"""Options defined here, with their target setting and parser."""
