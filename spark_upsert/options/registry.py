"""Where it is said what Kafka's records hold, and the schema registry that may say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from urllib.parse import urlsplit

from spark_upsert.errors import OptionError, require_plain
from spark_upsert.options.declared import Option
from spark_upsert.options.lives import NEXT
from spark_upsert.options.parse import Options, fold
from spark_upsert.payloads.registry import RegistrySettings

REGISTRY_OPTIONS = (
    Option("schemaRegistry.url", Options.text, NEXT).means(
        "The address of a schema registry with Confluent's REST interface, or several of one, "
        "comma-separated."
    ),
    Option("schemaRegistry.user", Options.text, NEXT).means(
        "The user that asks it, by basic authentication."
    ),
    Option("schemaRegistry.password", Options.text, NEXT).means(
        "The password of that user. Never shown."
    ),
    Option("schemaRegistry.token", Options.text, NEXT).means(
        "Instead: a bearer token. Never shown."
    ),
    Option("schemaRegistry.headers", Options.text, NEXT).means(
        "Further headers of each request: `Name: value`, one a line. Never shown."
    ),
    Option("schemaRegistry.caFile", Options.text, NEXT).means(
        "A file of the certificates that sign that of the registry, on each machine. Default: "
        "those of the system."
    ),
)
"""Where a schema registry is, and how it is asked."""

_URL, *_HOW = (option.name for option in REGISTRY_OPTIONS)
_HEADER = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x20-\x7e\t]*?)[ \t]*")
"""A header as HTTP has it."""


class SchemaFrom(Enum):
    """Where it is said what a side of Kafka's records holds, if no option does."""

    INLINE = "inline"
    """In front of each payload (`payloads.wrapped`)."""
    REGISTRY = "registry"
    """In a schema registry, by the id in front of each payload."""


def schema_sources(
    payloads: Mapping[str, str | None], *, has_registry: bool, is_debezium: bool
) -> dict[str, SchemaFrom]:
    """Return for which sides of the records the schema is to be found, and where.

    Parameters
    ----------
    payloads : mapping of str to str or None
        The options ``<side>Format`` and ``<side>Schema``.
    has_registry : bool
    is_debezium : bool
        Whether keys are as the values, unless options say otherwise.

    Raises
    ------
    OptionError
        The format has no such schemas.
    """
    found: dict[str, SchemaFrom] = {}
    for side in ("value", "key"):
        text, written = payloads[f"{side}Schema"], payloads[f"{side}Format"]
        if side == "key" and is_debezium:
            written = written or payloads["valueFormat"]
            if (
                text is None
                and found.get("value") is SchemaFrom.INLINE
                and fold(written or "") == "json"
            ):
                text = SchemaFrom.INLINE.value
        source = _source(side, text, fold(written or ""), has_registry=has_registry)
        if source is not None:
            found[side] = source
    return found


def _source(side: str, text: str | None, written: str, *, has_registry: bool) -> SchemaFrom | None:
    is_framed = written in ("avroconfluent", "jsonconfluent")
    named = fold(text or (SchemaFrom.REGISTRY.value if has_registry and is_framed else ""))
    if named == SchemaFrom.INLINE.value:
        if written != "json":
            raise OptionError(
                f"option '{side}Schema' is 'inline', which means JSON that begins with its schema.",
                hint=f"use {side}Format=json, or give the schema.",
                option=f"{side}Schema",
            )
        return SchemaFrom.INLINE
    if named != SchemaFrom.REGISTRY.value:
        return None
    if not is_framed:
        raise OptionError(
            f"option '{side}Schema' is 'registry', and {side}Format={written or 'none'} has no ids "
            "of schemas.",
            hint=f"use {side}Format=avro-confluent or json-confluent.",
            option=f"{side}Schema",
        )
    if not has_registry:
        raise OptionError.missing(_URL, f"{side}Schema=registry asks there")
    return SchemaFrom.REGISTRY


def registry_settings(options: Options) -> RegistrySettings | None:
    """Return where the schema registry is; None if there is none. Shows no secrets."""
    text = options.text(_URL)
    if text is None:
        for name in _HOW:
            options.refuse(
                name,
                f"says how a schema registry is asked, and '{_URL}' is missing",
                hint=f"give '{_URL}', or drop it.",
            )
        return None
    urls = tuple(url.strip().rstrip("/") for url in text.split(","))
    for url in urls:
        if "@" in url:
            raise OptionError(
                f"option '{_URL}' holds a user or a password, which logs would show.",
                hint="give 'schemaRegistry.user' and 'schemaRegistry.password'.",
                option=_URL,
            )
        require_plain(url, option=_URL)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError.invalid(_URL, url, "an address such as 'http://registry:8081'")
    user, password, token, headers, ca_file = map(options.text, _HOW)
    options.refuse_together("schemaRegistry.user", "schemaRegistry.token")
    if password is not None and user is None:
        raise OptionError.missing("schemaRegistry.user", "whose password is given")
    return RegistrySettings(
        urls=urls,
        user=user,
        password=password,
        token=token,
        headers=_headers(headers or ""),
        ca_file=ca_file,
    )


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _HEADER.fullmatch(line.strip())
        if match is None:
            raise OptionError(
                f"option 'schemaRegistry.headers' expects 'Name: value' in each line, and line "
                f"{number} is none.",
                hint="write 'Name: value', each header in a line of its own.",
                option="schemaRegistry.headers",
            )
        found.append((match[1], match[2]))
    return tuple(found)
