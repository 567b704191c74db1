"""A schema registry: Confluent's REST interface, as far as a reader needs it.

    GET /schemas/ids/{id}                             the schema of an id, for ever
    GET /subjects/{subject}/versions/{version}        a referenced schema, for ever
    GET /subjects/{subject}/versions/latest           what is newest, never kept

A process asks for what is for ever once (`_memory`), by address, account and id: one address may
serve several tenants, each with schemas of its own. A registry that does not answer is an outage,
as of a storage: an error after some tries, and nothing is known of the payloads. An answer that is
no registry's is an outage, too: endless, late, packed beyond all measure or no JSON
(`payloads.answers`). An id that the registry does not know, or a schema that cannot be read, makes
the payloads that name it bad, and is not asked for again for a while (`payloads.missing`).

The client is urllib3: retries with pauses, pooled connections, TLS and proxies, in one package of
pure Python that needs no other. Rejected: the registry client of ``confluent-kafka``, which brings
nine packages and a native library to every executor for two requests, and takes no headers.

Source: Confluent's Schema Registry API reference, which Karapace and Apicurio follow (``ccompat``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from spark_upsert.errors import OptionError, StorageError, UpsertFlowError, setting
from spark_upsert.payloads.answers import TooMuch, body_of, in_time
from spark_upsert.payloads.budgets import (
    SCHEMA_BYTES_MAX,
    Unreadable,
    bytes_kept,
    read_json,
    require,
)
from spark_upsert.payloads.connect.json_schema import REFERENCED
from spark_upsert.payloads.missing import Missing
from spark_upsert.payloads.pieces import unforeseen
from spark_upsert.payloads.recent import Recent

_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"

_TRIES = 5
_BUSY = (429, 500, 502, 503, 504)
_CONNECT_S, _READ_S = 5.0, 15.0

_REFERENCES_MAX = 256
"""Schemas that one may refer to, all in all."""

_REFERENCES_S = 120.0
"""Time that a registry may take for all of them."""


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """Address of a registry, and how it is asked. Hashable; its secrets are not shown."""

    urls: tuple[str, ...]
    """The same registry at several addresses: the next one is asked where one does not answer."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_file: str | None = None
    tries: int = _TRIES
    backoff_s: float = 0.25
    """The pause before the third try; each further one is twice as long."""


@dataclass(frozen=True)
class Registered:
    """A schema of a registry. What it refers to is part of its text."""

    kind: str
    """``AVRO``, ``JSON`` or ``PROTOBUF``."""
    text: str
    id: int | None = None


class UnknownSchema(Exception):
    """The registry has no such schema; never leaves the engine."""


Fetch = Callable[[str], Any]
"""Returns the answer to a path as JSON has it; raises `UnknownSchema` or `StorageError`."""


def schema_of_id(settings: RegistrySettings, schema_id: int) -> Registered:
    """Return the schema of an id.

    Raises
    ------
    UnknownSchema
        There is none, or there was none a moment ago.
    Unreadable
        It cannot be read with what it refers to.
    Unasked
        It is not known here, and it is not asked for because too many others are missing.
    StorageError
        The registry does not answer, or refuses to.
    """
    return _kept(settings, f"/schemas/ids/{schema_id}")


def latest_schema(settings: RegistrySettings, subject: str) -> Registered:
    """Return the newest schema of a subject; it is asked for each time.

    Raises
    ------
    OptionError
        There is no such subject.
    StorageError
        The registry does not answer, or refuses to.
    """
    fetch = _fetch_of(settings)
    try:
        return _registered(settings, fetch(f"/subjects/{quote(subject, safe='')}/versions/latest"))
    except UnknownSchema as error:
        raise OptionError(
            f"the schema registry at {_named(settings)} has no subject '{subject}'.",
            hint="name one that it has, usually '<topic>-value' and '<topic>-key'.",
            option="valueSubject",
        ) from error


_memory: Recent[tuple[RegistrySettings, str], Registered] = Recent(
    lambda _, found: bytes_kept(len(found.text), 1)
)


_missing: Missing[RegistrySettings] = Missing(lambda: _clock(), (UnknownSchema, Unreadable))


def _kept(settings: RegistrySettings, path: str) -> Registered:
    """Return what a path holds for ever."""

    def ask() -> Registered:
        return _registered(settings, _fetch_of(settings)(path))

    return _memory.of((settings, path), lambda: _missing.of(settings, path, ask))


def forget_schemas() -> None:
    """Forget what registries have said, as a new process would."""
    _memory.clear()
    _missing.clear()


def _registered(settings: RegistrySettings, answer: Any) -> Registered:
    try:
        kind, text = str(answer.get("schemaType") or "AVRO").upper(), answer["schema"]
        if not isinstance(text, str):
            raise TypeError(f"it is a {type(text).__name__}")
    except (AttributeError, KeyError, TypeError) as error:
        raise _strange(settings, f"an answer without a schema ({error})") from error
    references = answer.get("references")
    if references and kind in ("AVRO", "JSON"):
        text = _whole(settings, kind, text, references)
    number = answer.get("id")
    return Registered(kind, text, number if type(number) is int else None)


def _whole(settings: RegistrySettings, kind: str, text: str, references: Any) -> str:
    """Return a schema with those that it refers to, which may lie, or be too many.

    Raises
    ------
    Unreadable
        It cannot be read because of them. Then its payloads are bad: a registry holds what writers
        have registered.
    StorageError
        The registry does not answer.
    """
    try:
        found = _Referred(settings)
        found.collect(references, 0)
        whole = (_with_avro if kind == "AVRO" else _with_json)(text, found.schemas)
    except (UpsertFlowError, Unreadable):
        raise
    except UnknownSchema as error:
        raise Unreadable("it refers to a schema that is not in the registry") from error
    except Exception as error:
        raise Unreadable(f"what it refers to is no schema ({unforeseen(error)})") from error
    if len(whole) > SCHEMA_BYTES_MAX:
        raise Unreadable(f"it is longer than {SCHEMA_BYTES_MAX} bytes with what it refers to")
    return whole


class _Referred:
    """The schemas that one refers to, by name: bounded in number, depth, bytes and time."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.schemas: dict[str, Any] = {}
        self._settings = settings
        self._fetch = _fetch_of(settings)
        self._bytes = 0
        self._until_s = _clock() + _REFERENCES_S

    def collect(self, references: Sequence[Any], depth: int) -> None:
        """Add schemas, and those that they refer to themselves."""
        require(depth=depth)
        for reference in references:
            name = str(reference["name"])
            if name in self.schemas:
                continue
            if len(self.schemas) >= _REFERENCES_MAX:
                raise Unreadable(f"it refers to more than {_REFERENCES_MAX} others")
            self.schemas[name] = None  # Met again inside of itself, it is not followed.
            answer = self._asked(reference)
            self.collect(answer.get("references") or (), depth + 1)
            self._bytes += len(answer["schema"])
            if self._bytes > SCHEMA_BYTES_MAX:
                raise Unreadable(f"it refers to more than {SCHEMA_BYTES_MAX} bytes of others")
            self.schemas[name] = read_json(answer["schema"])

    def _asked(self, reference: Any) -> Any:
        if _clock() > self._until_s:
            raise _silent(self._settings, f"more than {_REFERENCES_S:g} s for what a schema needs")
        subject = quote(str(reference["subject"]), safe="")
        return self._fetch(f"/subjects/{subject}/versions/{int(reference['version'])}")


def _with_json(text: str, found: Mapping[str, Any]) -> str:
    return json.dumps({**read_json(text), REFERENCED: found})


def _with_avro(text: str, found: Mapping[str, Any]) -> str:
    """Return a schema in which each referenced type stands where it is first named."""
    left = dict(found)

    def whole(part: Any, space: str) -> Any:
        if isinstance(part, str):
            full = part if "." in part or not space else f"{space}.{part}"
            name = full if full in left else part
            definition = left.pop(name, None)
            return part if definition is None else whole(definition, "")
        if isinstance(part, list):
            return [whole(branch, space) for branch in part]
        if not isinstance(part, dict):
            return part
        own = str(part.get("name", ""))
        inner = own.rpartition(".")[0] or part.get("namespace", space) if own else space
        replaced = dict(part)
        for member in ("type", "items", "values"):
            if member in part:
                replaced[member] = whole(part[member], inner)
        if "fields" in part:
            replaced["fields"] = [
                {**each, "type": whole(each["type"], inner)} for each in part["fields"]
            ]
        # A type from elsewhere keeps its own space, not the one around the place it came to.
        return {**replaced, "namespace": inner} if own and "." not in own else replaced

    return json.dumps(whole(read_json(text), ""))


# -- requests ----------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _fetch_of(settings: RegistrySettings) -> Fetch:
    """Return what asks a registry; its connections stay open."""
    try:
        import urllib3
    except ModuleNotFoundError as error:
        raise OptionError(
            "a schema registry needs the package 'urllib3', which is not installed here.",
            hint="run `pip install 'upsertflow[registry]'` for the interpreter of the workers.",
        ) from error
    headers = {"Accept": _ACCEPT, "Accept-Encoding": "identity", **dict(settings.headers)}
    if settings.user is not None:
        pair = f"{settings.user}:{settings.password or ''}"
        headers |= urllib3.make_headers(basic_auth=pair)
    if settings.token is not None:
        headers["Authorization"] = f"Bearer {settings.token}"
    pool = urllib3.PoolManager(
        num_pools=8,
        headers=headers,
        timeout=urllib3.Timeout(connect=_CONNECT_S, read=_READ_S),
        retries=urllib3.Retry(
            # Where there are several addresses, the next one is the better try.
            total=max(1, settings.tries // len(settings.urls)) - 1,
            backoff_factor=settings.backoff_s,
            status_forcelist=_BUSY,
            redirect=0,  # No other address is to get the password.
            raise_on_redirect=False,
            raise_on_status=False,
            respect_retry_after_header=False,
        ),
        **({"ca_certs": settings.ca_file} if settings.ca_file else {}),
    )

    pool.pool_classes_by_scheme = {
        scheme: type(pools.__name__, (pools,), {"ConnectionCls": in_time(connection)})
        for scheme, pools, connection in (
            ("http", urllib3.HTTPConnectionPool, urllib3.connection.HTTPConnection),
            ("https", urllib3.HTTPSConnectionPool, urllib3.connection.HTTPSConnection),
        )
    }

    def ask(url: str, path: str) -> Any:
        response = pool.request("GET", url + path, preload_content=False)
        try:
            body = body_of(response)
        except BaseException:
            response.close()  # What is left of it is not read, however much that is.
            raise
        response.release_conn()
        return _answer(settings, response.status, body)

    def fetch(path: str) -> Any:
        lost: Exception | None = None
        for url in settings.urls:
            try:
                return ask(url, path)
            except TooMuch as error:
                raise _strange(settings, str(error)) from error
            except (urllib3.exceptions.HTTPError, _Busy) as error:
                lost = error
        raise _silent(settings, str(lost)) from lost

    return fetch


def _clock() -> float:
    return time.monotonic()


def _silent(settings: RegistrySettings, why: str) -> StorageError:
    return StorageError(
        f"the schema registry at {_named(settings)} does not answer: {why}.",
        hint="see whether it runs and can be reached from the workers; the write goes on where "
        "it was when it is done again.",
    )


class _Busy(Exception):
    """The registry says that it cannot answer at the moment."""


def _answer(settings: RegistrySettings, status: int, body: bytes) -> Any:
    if status in _BUSY:
        raise _Busy(f"it says {status}")
    if status in (401, 403):
        raise StorageError(
            f"the schema registry at {_named(settings)} refuses to answer ({status}).",
            hint=f"give {setting('schemaRegistry.user')} and {setting('schemaRegistry.password')}, "
            f"or {setting('schemaRegistry.token')}, that may read it.",
        )
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if status == 404 and isinstance(answer, dict) and "error_code" in answer:
        raise UnknownSchema
    if status != 200 or not isinstance(answer, dict):
        raise _strange(settings, f"status {status} and {len(body)} bytes that are no schema")
    return answer


def _strange(settings: RegistrySettings, what: str) -> StorageError:
    """Return the error of an answer that no registry gives: perhaps others listen there."""
    return StorageError(
        f"the schema registry at {_named(settings)} gave {what}.",
        hint=f"see that {setting('schemaRegistry.url')} is the address of its REST interface, as "
        "http://registry:8081; that of Apicurio ends with /apis/ccompat/v7.",
    )


def _named(settings: RegistrySettings) -> str:
    return ", ".join(settings.urls)
