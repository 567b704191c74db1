"""Client for schema registries with Confluent's REST interface, and payloads with its header.

Schemas are cached by address, account and id without expiry. Responses are bounded in bytes and
time; an invalid response counts as an outage (docs/adr/0046).
"""

from __future__ import annotations

import io
import json
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.lru import LruMap, SharedLruMap
from spark_upsert.errors import OptionError, StorageError, UpsertFlowError, setting
from spark_upsert.payloads.connect import REFERENCED
from spark_upsert.payloads.decoder import (
    SCHEMA_BYTES_MAX,
    SCHEMA_CACHE_BYTES_MAX,
    Decoder,
    Payloads,
    RefusedField,
    Unreadable,
    describe_exception,
    estimate_cached_bytes,
    read_json,
    refused_fields,
    require_limits,
)

ANSWER_BYTES_MAX = 8 << 20
"""Maximum response size: a 1 MiB schema with every character escaped in JSON."""

ANSWER_S = 30.0
"""Maximum seconds per response, from the first header to the last byte."""

_PIECE_BYTES = 64 << 10
_ANY_WINDOW = 47
"""zlib's window setting for both gzip and deflate."""

Clock = Callable[[], float]


class ResponseTooLarge(Exception):
    """A response is too long, or not compressed as declared."""


def limit_response_time(connection: type[Any], clock: Clock = time.monotonic) -> type[Any]:
    """Return a subclass of a urllib3 connection class that limits the time per response.

    A read after the deadline raises `TimeoutError`, which urllib3 treats as a socket timeout.
    """

    class DeadlineConnection(connection):  # type: ignore[misc]
        """A connection whose socket sets a deadline for each response."""

        sock: Any

        def connect(self) -> None:
            super().connect()
            self.sock = _DeadlineSocket(self.sock, clock)

    return DeadlineConnection


class _DeadlineSocket:
    """A socket wrapper: each response is read by a file object with a deadline."""

    def __init__(self, sock: Any, clock: Clock) -> None:
        self._sock = sock
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def makefile(self, mode: str = "rb", buffering: int | None = None) -> io.BufferedReader:
        raw = self._sock.makefile(mode, buffering=0)
        return io.BufferedReader(_DeadlineFile(self._sock, raw, self._clock))


class _DeadlineFile(io.RawIOBase):
    """One response's bytes. Its deadline is `ANSWER_S` after its creation."""

    def __init__(self, sock: Any, raw: io.RawIOBase, clock: Clock) -> None:
        self._sock = sock
        self._raw = raw
        self._clock = clock
        self._deadline_s = clock() + ANSWER_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline_s - self._clock()
        if left_s <= 0:
            raise TimeoutError(f"an answer takes longer than {ANSWER_S:g} s")
        timeout_s = self._sock.gettimeout()
        self._sock.settimeout(left_s if timeout_s is None else min(left_s, timeout_s))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def read_response(response: Any) -> bytes:
    """Read and decompress an unread urllib3 response; raises `ResponseTooLarge`."""
    data = bytearray()
    while piece := response.read(_PIECE_BYTES, decode_content=False):
        data += piece
        if len(data) > ANSWER_BYTES_MAX:
            raise ResponseTooLarge(f"more than {ANSWER_BYTES_MAX} bytes")
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    return bytes(data) if encoding == "identity" else _decompress(bytes(data), encoding)


def _decompress(data: bytes, encoding: str) -> bytes:
    """Decompress a response; raises `ResponseTooLarge`, also for an invalid encoding."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ResponseTooLarge(f"an answer packed as '{encoding[:20]}'")
    inflater = zlib.decompressobj(_ANY_WINDOW)
    try:
        inflated = inflater.decompress(data, ANSWER_BYTES_MAX)
    except zlib.error as error:
        raise ResponseTooLarge(f"an answer that is not packed as it says ({error})") from error
    if inflater.unconsumed_tail:
        raise ResponseTooLarge(f"more than {ANSWER_BYTES_MAX} bytes, once it is unpacked")
    return inflated


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MISSING_S = 10.0
"""Seconds for which a schema counts as missing. Writers register a schema before use, so only a
lagging registry follower reports an existing schema as missing."""

MISSING_MAX = 256
"""Maximum missing ids per registry: some 25 requests a second for absent ids."""

_OWNERS_MAX = 64


class LookupThrottle(Exception):
    """Too many schemas are missing, so no request is sent; never leaves the engine."""


class NegativeCache(Generic[K]):
    """Caches failed lookups by owner and name; thread-safe.

    A missing name is requested once per `MISSING_S`. Beyond `MISSING_MAX` names per owner, a lookup
    raises `LookupThrottle`.

    Parameters
    ----------
    clock : callable
        Returns monotonic seconds.
    missing : tuple of exception types
        Exceptions for a missing name. Other exceptions are not cached.
    """

    def __init__(self, clock: Callable[[], float], missing: tuple[type[Exception], ...]) -> None:
        self._clock = clock
        self._missing = missing
        self._known: LruMap[K, OrderedDict[str, tuple[float, Exception | None]]]
        self._known = LruMap(_OWNERS_MAX)
        self._lock = threading.Lock()

    def of(self, owner: K, name: str, ask: Callable[[], V]) -> V:
        """Look up a name; if it was missing recently, raise that error again without a request."""
        self._enter(owner, name)
        try:
            schema = ask()
        except self._missing as error:
            self._note(owner, name, error)
            raise
        except BaseException:
            self._note(owner, name, None)
            raise
        self._note(owner, name, None)
        return schema

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._known.clear()

    def _enter(self, owner: K, name: str) -> None:
        """Reserve an entry before the lookup, so that concurrent lookups are bounded too."""
        now_s = self._clock()
        with self._lock:
            entries = self._known.get_or_create(owner, OrderedDict)
            while entries and next(iter(entries.values()))[0] <= now_s:
                entries.popitem(last=False)
            _, error = entries.get(name, (0.0, None))
            if error is not None:
                raise type(error)(*error.args)
            if name not in entries and len(entries) >= MISSING_MAX:
                raise LookupThrottle
            entries[name] = now_s + MISSING_S, None

    def _note(self, owner: K, name: str, error: Exception | None) -> None:
        until_s = self._clock() + MISSING_S
        with self._lock:
            entries = self._known.get_or_create(owner, OrderedDict)
            entries.pop(name, None)
            if error is not None:
                entries[name] = until_s, error


_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"

_TRIES = 5
_BUSY = (429, 500, 502, 503, 504)
_CONNECT_S, _READ_S = 5.0, 15.0

_REFERENCES_MAX = 256
"""Maximum direct and indirect references per schema."""

_REFERENCES_S = 120.0
"""Maximum seconds to fetch all references."""


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """A registry's addresses, credentials and retries. Hashable; the repr omits secrets."""

    urls: tuple[str, ...]
    """Addresses for the same registry, tried in order."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_file: str | None = None
    tries: int = _TRIES
    backoff_s: float = 0.25
    """Seconds before the third attempt; each later pause is twice as long."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A registry schema; its text includes referenced schemas."""

    kind: str
    """``AVRO``, ``JSON`` or ``PROTOBUF``."""
    text: str
    id: int | None = None


class UnknownSchema(Exception):
    """The registry has no such schema; never leaves the engine."""


Fetch = Callable[[str], Any]
"""Requests a path and returns the JSON response; raises `UnknownSchema` or `StorageError`."""


def schema_of_id(settings: RegistrySettings, schema_id: int) -> RegisteredSchema:
    """Return a schema by id, cached."""
    return _cached_schema(settings, f"/schemas/ids/{schema_id}")


def latest_schema(settings: RegistrySettings, subject: str) -> RegisteredSchema:
    """Fetch a subject's newest schema; not cached."""
    fetch = _fetch_of(settings)
    try:
        return _parse_schema(
            settings, fetch(f"/subjects/{quote(subject, safe='')}/versions/latest")
        )
    except UnknownSchema as error:
        raise OptionError(
            f"the schema registry at {_named(settings)} has no subject '{subject}'.",
            hint="name one that it has, usually '<topic>-value' and '<topic>-key'.",
            option="valueSubject",
        ) from error


_memory: SharedLruMap[tuple[RegistrySettings, str], RegisteredSchema] = SharedLruMap(
    bytes_max=SCHEMA_CACHE_BYTES_MAX,
    weigh=lambda _, found: estimate_cached_bytes(len(found.text), 1),
)


_missing: NegativeCache[RegistrySettings] = NegativeCache(
    lambda: _clock(), (UnknownSchema, Unreadable)
)


def _cached_schema(settings: RegistrySettings, path: str) -> RegisteredSchema:
    """Return the immutable schema at a path, cached."""

    def ask() -> RegisteredSchema:
        return _parse_schema(settings, _fetch_of(settings)(path))

    return _memory.get_or_create((settings, path), lambda: _missing.of(settings, path, ask))


def forget_schemas() -> None:
    """Clear the schema caches."""
    _memory.clear()
    _missing.clear()


def _parse_schema(settings: RegistrySettings, answer: Any) -> RegisteredSchema:
    """Return the schema in a registry's response, with its references fetched and included."""
    try:
        kind, text = str(answer.get("schemaType") or "AVRO").upper(), answer["schema"]
        if not isinstance(text, str):
            raise TypeError(f"it is a {type(text).__name__}")
    except (AttributeError, KeyError, TypeError) as error:
        raise _invalid_response(settings, f"an answer without a schema ({error})") from error
    references = answer.get("references")
    if references and kind in ("AVRO", "JSON"):
        text = _with_references(settings, kind, text, references)
    number = answer.get("id")
    return RegisteredSchema(kind, text, number if type(number) is int else None)


def _with_references(settings: RegistrySettings, kind: str, text: str, references: Any) -> str:
    """Return a schema with its references included; raises `Unreadable` if they are invalid."""
    try:
        fetched = _SchemaReferences(settings)
        fetched.collect(references, 0)
        resolve = (_include_avro if kind == "AVRO" else _include_json)(text, fetched.schemas)
    except (UpsertFlowError, Unreadable):
        raise
    except UnknownSchema as error:
        raise Unreadable("it refers to a schema that is not in the registry") from error
    except Exception as error:
        raise Unreadable(f"what it refers to is no schema ({describe_exception(error)})") from error
    if len(resolve) > SCHEMA_BYTES_MAX:
        raise Unreadable(f"it is longer than {SCHEMA_BYTES_MAX} bytes with what it refers to")
    return resolve


class _SchemaReferences:
    """Fetches referenced schemas by name, bounded in number, depth, bytes and time."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.schemas: dict[str, Any] = {}
        self._settings = settings
        self._fetch = _fetch_of(settings)
        self._bytes = 0
        self._deadline_s = _clock() + _REFERENCES_S

    def collect(self, references: Sequence[Any], depth: int) -> None:
        """Fetch schemas and, recursively, their references."""
        require_limits(depth=depth)
        for reference in references:
            name = str(reference["name"])
            if name in self.schemas:
                continue
            if len(self.schemas) >= _REFERENCES_MAX:
                raise Unreadable(f"it refers to more than {_REFERENCES_MAX} others")
            self.schemas[name] = None  # Met again inside of itself, it is not followed.
            answer = self._fetch_reference(reference)
            self.collect(answer.get("references") or (), depth + 1)
            self._bytes += len(answer["schema"])
            if self._bytes > SCHEMA_BYTES_MAX:
                raise Unreadable(f"it refers to more than {SCHEMA_BYTES_MAX} bytes of others")
            self.schemas[name] = read_json(answer["schema"])

    def _fetch_reference(self, reference: Any) -> Any:
        """Fetch one reference's JSON; raises `StorageError` after the deadline."""
        if _clock() > self._deadline_s:
            raise _no_response(
                self._settings, f"more than {_REFERENCES_S:g} s for what a schema needs"
            )
        subject = quote(str(reference["subject"]), safe="")
        return self._fetch(f"/subjects/{subject}/versions/{int(reference['version'])}")


def _include_json(text: str, schemas: Mapping[str, Any]) -> str:
    """Add the referenced schemas by name, as member `REFERENCED`."""
    return json.dumps({**read_json(text), REFERENCED: schemas})


def _include_avro(text: str, schemas: Mapping[str, Any]) -> str:
    """Insert the definition of each referenced type at its first use."""
    left = dict(schemas)

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
        record_name = str(part.get("name", ""))
        inner = (
            record_name.rpartition(".")[0] or part.get("namespace", space) if record_name else space
        )
        replaced = dict(part)
        for member in ("type", "items", "values"):
            if member in part:
                replaced[member] = whole(part[member], inner)
        if "fields" in part:
            replaced["fields"] = [
                {**record_field, "type": whole(record_field["type"], inner)}
                for record_field in part["fields"]
            ]
        # A type from elsewhere keeps its own space, not the one around the place it came to.
        return (
            {**replaced, "namespace": inner} if record_name and "." not in record_name else replaced
        )

    return json.dumps(whole(read_json(text), ""))


# -- requests ----------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _fetch_of(settings: RegistrySettings) -> Fetch:
    """Return a client function for a registry; its connections stay open."""
    try:
        import urllib3
    except ModuleNotFoundError as error:
        raise OptionError(
            "a schema registry needs the package 'urllib3', which is not installed here.",
            hint="run `pip install 'upsertflow[kafka]'` for the interpreter of the workers.",
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
        scheme: type(pools.__name__, (pools,), {"ConnectionCls": limit_response_time(connection)})
        for scheme, pools, connection in (
            ("http", urllib3.HTTPConnectionPool, urllib3.connection.HTTPConnection),
            ("https", urllib3.HTTPSConnectionPool, urllib3.connection.HTTPSConnection),
        )
    }

    def ask(url: str, path: str) -> Any:
        response = pool.request("GET", url + path, preload_content=False)
        try:
            body = read_response(response)
        except BaseException:
            response.close()  # What is left of it is not read, however much that is.
            raise
        response.release_conn()
        return _parse_response(settings, response.status, body)

    def fetch(path: str) -> Any:
        lost: Exception | None = None
        for url in settings.urls:
            try:
                return ask(url, path)
            except ResponseTooLarge as error:
                raise _invalid_response(settings, str(error)) from error
            except (urllib3.exceptions.HTTPError, _Busy) as error:
                lost = error
        raise _no_response(settings, str(lost)) from lost

    return fetch


def _clock() -> float:
    return time.monotonic()


def _no_response(settings: RegistrySettings, why: str) -> StorageError:
    return StorageError(
        f"the schema registry at {_named(settings)} does not answer: {why}.",
        hint="see whether it runs and can be reached from the workers; the write goes on where "
        "it was when it is done again.",
    )


class _Busy(Exception):
    """The registry is temporarily unavailable."""


def _parse_response(settings: RegistrySettings, status: int, body: bytes) -> Any:
    """Return a response's JSON.

    Raises `_Busy` for a temporary failure, `UnknownSchema` if the registry has no such schema, and
    `StorageError` for any other response.
    """
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
        raise _invalid_response(
            settings, f"status {status} and {len(body)} bytes that are no schema"
        )
    return answer


def _invalid_response(settings: RegistrySettings, what: str) -> StorageError:
    """Return the error for an invalid response, perhaps from another server at that address."""
    return StorageError(
        f"the schema registry at {_named(settings)} gave {what}.",
        hint=f"see that {setting('schemaRegistry.url')} is the address of its REST interface, as "
        "http://registry:8081; that of Apicurio ends with /apis/ccompat/v7.",
    )


def _named(settings: RegistrySettings) -> str:
    return ", ".join(settings.urls)


HEADER_BYTES = 5


@dataclass(frozen=True)
class ConfluentDecoder:
    """Removes the header (a zero byte and a schema id) and passes the rest to another decoder.

    With ``schema_id`` other ids are bad; without it the id is ignored.
    """

    inner: Decoder
    schema_id: int | None = None

    @property
    def fields(self) -> pa.Schema:
        """The inner decoder's columns."""
        return self.inner.fields

    @property
    def refused(self) -> tuple[RefusedField, ...]:
        """The fields that the inner decoder skips."""
        return refused_fields(self.inner)

    def decode(self, payloads: pa.Array) -> Payloads:
        """Decode payloads; a missing header or unexpected id is bad."""
        ids = header_ids(payloads)
        lacks = pc.and_(payloads.is_valid(), ids.is_null())
        reasons = pc.if_else(lacks, "it lacks the header of Confluent's wire format", None)
        if self.schema_id is not None:
            reasons = pc.coalesce(reasons, self._schema_id_errors(ids))
        # Not `binary_slice`, which fails where a value ends before its start.
        bodies = pc.binary_replace_slice(payloads, 0, HEADER_BYTES, b"")
        decoded = self.inner.decode(pc.if_else(reasons.is_null(), bodies, None))
        if decoded.reasons is not None:
            reasons = pc.coalesce(reasons, decoded.reasons)
        return Payloads(decoded.columns, reasons if reasons.null_count < len(reasons) else None)

    def _schema_id_errors(self, ids: pa.Array) -> pa.Array:
        """Return an error text for each payload with an unexpected schema id; otherwise null."""
        expected = f", expected {self.schema_id}"
        text = pc.binary_join_element_wise("schema id ", ids.cast(pa.string()), expected, "")
        return pc.if_else(pc.not_equal(ids, self.schema_id), text, None)


def header_ids(payloads: pa.Array) -> pa.Array:
    """Return the schema id in each payload's header; null without a header."""
    heads = pc.binary_slice(payloads, 0, HEADER_BYTES)
    has_header = pc.and_(
        pc.equal(pc.binary_length(heads), HEADER_BYTES),
        pc.equal(pc.binary_slice(payloads, 0, 1), b"\0"),
    ).fill_null(False)
    empty = bytes(HEADER_BYTES)
    header_bytes = (
        pc.if_else(has_header, heads, empty).fill_null(empty).cast(pa.binary(HEADER_BYTES))
    )
    table = np.frombuffer(
        header_bytes.buffers()[1], np.uint8, count=len(header_bytes) * HEADER_BYTES
    )
    digits = np.ascontiguousarray(table.reshape(-1, HEADER_BYTES)[:, 1:])
    ids = digits.view(">u4").reshape(-1).astype(np.int64)
    return pc.if_else(has_header, pa.array(ids), None)
