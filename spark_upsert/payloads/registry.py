"""A schema registry: Confluent's REST interface, as far as a reader needs it.

    GET /schemas/ids/{id}                             the schema of an id, for ever
    GET /subjects/{subject}/versions/{version}        a referenced schema, for ever
    GET /subjects/{subject}/versions/latest           what is newest, never kept

What is for ever is asked for once in a process (`_KEPT_MAX`), by address, asker and id: where one
address serves several tenants, who asks decides whose schemas it has. A registry that does not
answer is an outage, as of a storage: an error after some tries, and nothing is known of the
payloads. An id that it does not know is said of the payloads that name it.

The client is urllib3: retries with pauses, pooled connections, TLS and proxies, in one package of
pure Python that needs no other. Rejected: the registry client of ``confluent-kafka``, which brings
nine packages and a native library to every executor for two requests, and takes no headers.

Source: Confluent's Schema Registry API reference, which Karapace and Apicurio follow (``ccompat``).
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from spark_upsert.errors import OptionError, StorageError, setting
from spark_upsert.payloads.json_schema import REFERENCED

_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"

_TRIES = 5
_BUSY = (429, 500, 502, 503, 504)
_CONNECT_S, _READ_S = 5.0, 15.0

_BYTES_MAX = 8 << 20
"""An answer that is longer is no schema."""

_KEPT_MAX = 4096
"""Schemas that a process remembers: of a thousand tables a few each."""

_REFERENCES_MAX = 256
"""Schemas that one may refer to, all in all."""


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """Where a registry is, and how it is asked. Hashable; what is secret is not shown."""

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
        There is none.
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


_memory: OrderedDict[tuple[RegistrySettings, str], Registered] = OrderedDict()
_memory_lock = threading.Lock()


def _kept(settings: RegistrySettings, path: str) -> Registered:
    """Return what a path holds for ever."""
    place = settings, path
    with _memory_lock:
        if place in _memory:
            _memory.move_to_end(place)
            return _memory[place]
    found = _registered(settings, _fetch_of(settings)(path))
    with _memory_lock:
        _memory[place] = found
        while len(_memory) > _KEPT_MAX:
            _memory.popitem(last=False)
    return found


def forget_schemas() -> None:
    """Forget what registries have said, as a new process would."""
    with _memory_lock:
        _memory.clear()


def _registered(settings: RegistrySettings, answer: Any) -> Registered:
    try:
        kind, text = str(answer.get("schemaType") or "AVRO").upper(), str(answer["schema"])
        references = list(answer.get("references") or ())
    except (AttributeError, KeyError, TypeError) as error:
        raise _strange(settings, f"an answer without a schema ({error})") from error
    if references and kind in ("AVRO", "JSON"):
        found: dict[str, Any] = {}
        _collect(settings, references, found)
        try:
            text = (_with_avro if kind == "AVRO" else _with_json)(text, found)
        except (ValueError, RecursionError) as error:
            raise _strange(settings, f"a schema that is no JSON ({error})") from error
    number = answer.get("id")
    return Registered(kind, text, number if type(number) is int else None)


def _collect(settings: RegistrySettings, references: Sequence[Any], found: dict[str, Any]) -> None:
    """Add the schemas that are referred to, by name."""
    for reference in references:
        name = str(reference["name"])
        if name in found:
            continue
        if len(found) >= _REFERENCES_MAX:
            raise _strange(settings, f"a schema that refers to more than {_REFERENCES_MAX} others")
        found[name] = None  # Met again inside of itself, it is not followed.
        subject = quote(str(reference["subject"]), safe="")
        path = f"/subjects/{subject}/versions/{int(reference['version'])}"
        answer = _fetch_of(settings)(path)
        _collect(settings, answer.get("references") or (), found)
        found[name] = json.loads(answer["schema"])


def _with_json(text: str, found: Mapping[str, Any]) -> str:
    return json.dumps({**json.loads(text), REFERENCED: found})


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

    return json.dumps(whole(json.loads(text), ""))


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
    headers = {"Accept": _ACCEPT, **dict(settings.headers)}
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
            redirect=0,  # Elsewhere nobody is to get the password.
            raise_on_redirect=False,
            raise_on_status=False,
            respect_retry_after_header=False,
        ),
        **({"ca_certs": settings.ca_file} if settings.ca_file else {}),
    )

    def ask(url: str, path: str) -> Any:
        with pool.request("GET", url + path, preload_content=False) as response:
            body = response.read(_BYTES_MAX + 1, decode_content=True)
            response.drain_conn()
        return _answer(settings, response.status, body)

    def fetch(path: str) -> Any:
        lost: Exception | None = None
        for url in settings.urls:
            try:
                return ask(url, path)
            except urllib3.exceptions.HTTPError as error:
                lost = error
            except _Busy as error:
                lost = error
        raise StorageError(
            f"the schema registry at {_named(settings)} does not answer: {lost}.",
            hint="see whether it runs and can be reached from the workers; the write goes on where "
            "it was when it is done again.",
        ) from lost

    return fetch


class _Busy(Exception):
    """The registry says that it cannot answer at the moment."""


def _answer(settings: RegistrySettings, status: int, body: bytes) -> Any:
    if status in _BUSY:
        raise _Busy(f"it says {status}")
    if status in (401, 403):
        raise StorageError(
            f"the schema registry at {_named(settings)} refuses to answer ({status}).",
            hint=f"give {setting('schemaRegistry.user')} and {setting('schemaRegistry.password')}, "
            f"or {setting('schemaRegistry.token')}, of somebody who may read it.",
        )
    try:
        answer = json.loads(body) if len(body) <= _BYTES_MAX else None
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
