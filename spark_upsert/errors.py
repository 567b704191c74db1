"""Engine errors, all `UpsertFlowError`: each message names the problem and the remedy.

A class exists only where a caller would act differently. ``code`` is stable (docs/errors.md), the
text is not. Errors survive ``pickle`` between worker and driver. Hints name settings by `setting`,
and `masked` removes secrets from URLs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, ClassVar, Literal, NamedTuple, Self

_USER_INFO = re.compile(
    r"""(:/{1,2})(?:[^\s/@'"]*:[^\s@'"]*|(?<!abfs://)(?<!abfss://)[^\s/@'"]+)@""", re.IGNORECASE
)
"""User and password before a host; ``abfss://container@account`` has no secret without a colon.
"""

_QUERY = re.compile(r"""(:/[^\s'"?#]*)([?#][^\s'"]+)""")
"""A URL's query and fragment."""

_PARAMETER = re.compile(r"([?#&;])([^=&;?#]*)=*([^&;?#]*)")

_PUBLIC_PARAMETERS = frozenset(
    {
        *("comp", "delimiter", "list-type", "marker", "max-keys", "partnumber", "prefix"),
        *("restype", "se", "sp", "sr", "start-after", "sv", "uploads", "versionid"),
        *("x-amz-algorithm", "x-amz-date", "x-amz-expires", "x-amz-signedheaders"),
    }
)
"""Object store request parameters that help to diagnose a failure and contain no secrets."""

_CREDENTIAL = re.compile(
    r"""([?&;](?:sig|[\w.-]*(?:secret|passw(?:or)?d|pwd|token|signature|credential|"""
    r"""(?:access|account|api|auth|private|sas|shared)[_-]?key)[\w.-]*)=)[^&;\s'"]+""",
    re.IGNORECASE,
)
"""A parameter with a credential's name, anywhere in a text."""


def masked(text: str) -> str:
    """Mask the secrets in URLs within a text.

    Query and fragment values are hidden, except those in `_PUBLIC_PARAMETERS`.
    """
    if ":/" not in text and "=" not in text:
        return text
    text = _QUERY.sub(lambda url: url[1] + _PARAMETER.sub(_without_value, url[2]), text)
    return _CREDENTIAL.sub(r"\1***", _USER_INFO.sub(r"\1***@", text))


def _without_value(parameter: re.Match[str]) -> str:
    mark, name, value = parameter.groups()
    if name.lower() in _PUBLIC_PARAMETERS or not (name or value):
        return parameter[0]
    # A parameter without a value may be a secret itself: Base64 ends with '=', a sentence with '.'.
    return f"{mark}{name}=***" if value.strip(".,:)") else f"{mark}***"


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:/+)([^/?#]*)([^?#]*)([?#]?)", re.DOTALL)
"""A URL's scheme (Hadoop's may have one slash), authority, path and next delimiter."""

_AUTHORITY = re.compile(r"[^:@\[\]]*(@[^:@\[\]]*)?(:\d*)?")
"""A host or bucket, or Azure's container and account."""


def is_url(path: str) -> bool:
    """Return whether a path is a URL instead of a local path."""
    return _URL.match(path) is not None


_SETTING = re.compile(r"⟨(\w[\w.]*)(:?)=([^⟨⟩]*)⟩")
"""A setting in a hint; the colon marks a table property."""


class Setting(NamedTuple):
    """A setting that a hint recommends, with its name in ``docs/options.md``."""

    name: str
    value: str
    is_property: bool
    """Whether it is a table property, which `Table.create` and `alter` accept by this name."""


SettingForm = Callable[[Setting], str]
"""Formats a setting for a reader."""


def setting(name: str, value: str = "...", *, is_property: bool = False) -> str:
    """Return a placeholder for a `Setting` in a hint."""
    return f"⟨{name}{':' * is_property}={re.sub('[⟨⟩]', '', value)}⟩"


def as_argument(given: Setting) -> str:
    """Format a setting for plain Python: ``late_rows=apply``."""
    if given.is_property:
        return f"{given.name}={given.value}"
    return f"{re.sub('(?=[A-Z])', '_', given.name).lower()}={given.value}"


def as_option(given: Setting) -> str:
    """Format a setting for Spark, as a call to ``option``."""
    value = given.value if given.value == "..." else f'"{given.value}"'
    return f'.option("{given.name}", {value})'


def as_flag(given: Setting) -> str:
    """Format a setting for `upsertflow replay`: ``--set mergeSchema=true``."""
    return f"--set {shlex.quote(f'{given.name}={given.value}')}"


Subject = Literal["input", "node", "operator", "table"]
"""An error's subject type: one of several in a stream, plan, graph or write."""


class UpsertFlowError(Exception):
    """Base class for every failure that this package raises on purpose."""

    code: ClassVar[str] = "UPSERTFLOW"

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        self.message = masked(message)
        self.fields = {name: _masked_field(value) for name, value in fields.items()}
        self._marked_hint = masked(hint)
        self._form: SettingForm = as_argument
        super().__init__(self._text())

    @property
    def hint(self) -> str:
        """Recommended action."""
        return self.hint_as(self._form)

    def hint_as(self, form: SettingForm) -> str:
        """Return the recommended action, with settings formatted for another reader."""
        return _SETTING.sub(
            lambda found: form(Setting(found[1], found[3], bool(found[2]))), self._marked_hint
        )

    @property
    def message_without_values(self) -> str:
        """The message without row values, for logs and dead-letter tables.

        It is the field ``told``, else the message without its field ``example``.
        """
        example = self.fields.get("example")
        without = self.message.replace(f" (for example {masked(str(example))})", "")
        return str(self.fields.get("told", without))

    def name_settings(self, form: SettingForm) -> None:
        """Format the hint's settings for its reader.

        Parameters
        ----------
        form : callable
            A module-level function, because it is pickled with the error.
        """
        self._form = form
        self.args = (self._text(),)

    def advise(self, more: str) -> None:
        """Append a sentence to the hint."""
        self._marked_hint = f"{self._marked_hint} {masked(more)}".strip()
        self.args = (self._text(),)

    def add_subject(self, kind: Subject, name: str) -> None:
        """Add the error's subject to the message; for each kind, the first name stays."""
        name = masked(str(name))
        field, value = ("operators", (name,)) if kind == "operator" else (kind, name)
        if field not in self.fields:
            self.fields[field] = value
            self.message = f"{kind} '{name}': {self.message}"
            self.args = (self._text(),)

    def _text(self) -> str:
        text = f"[{self.code}] {self.message}"
        hint = f"Hint: {self.hint}\n" if self._marked_hint else ""
        return f"{text}\n\n{hint}More: upsertflow explain-error {self.code}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self._marked_hint, self._form, self.fields)


def _rebuild(
    cls: type[UpsertFlowError], message: str, hint: str, form: SettingForm, fields: dict[str, Any]
) -> UpsertFlowError:
    error = cls(message, hint=hint, **fields)
    error.name_settings(form)
    return error


def _masked_field(value: Any) -> Any:
    return masked(value) if isinstance(value, str) else value


class about:
    """Add a subject to errors raised within the block; for each kind, the first name stays.

    Package errors get it in message and field, others in a note. It is a class, because every batch
    uses it: a generator takes three times as long.

    Parameters
    ----------
    kind : {"input", "node", "operator", "table"}
    name : str
        ``""``: the only subject with this kind, which needs no name.
    """

    __slots__ = ("_kind", "_name")

    def __init__(self, kind: Subject, name: str) -> None:
        self._kind: Subject = kind
        self._name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._name or not isinstance(error, Exception):
            return
        if isinstance(error, UpsertFlowError):
            error.add_subject(self._kind, self._name)
            return
        begin = f"It is about the {self._kind} "
        if not any(note.startswith(begin) for note in getattr(error, "__notes__", ())):
            location = " of the plan" if self._kind == "node" else ""
            error.add_note(f"{begin}'{masked(self._name)}'{location}.")


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate nearest to a mistyped name; None if none is near."""
    import difflib  # Imported here: a worker that meets no error needs none of it.

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.5)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return a sentence with the nearest candidate, or with all candidates."""
    names = list(candidates)
    near = nearest(name, names)
    return f"Did you mean '{near}'?" if near else f"Choose one of: {', '.join(sorted(names))}."


class OptionError(UpsertFlowError, ValueError):
    """An option is unknown, malformed, missing or contradicts another option."""

    code = "OPTION"

    @classmethod
    def unknown(cls, name: str, known: Iterable[str]) -> Self:
        return cls(f"unknown option '{name}'.", hint=did_you_mean(name, known), option=name)

    @classmethod
    def missing(cls, name: str, meaning: str) -> Self:
        return cls(
            f"the option '{name}' is required ({meaning}), but was not given.",
            hint=f"give {setting(name)}.",
            option=name,
        )

    @classmethod
    def invalid(cls, name: str, value: object, expected: str, *, hint: str = "") -> Self:
        # An option of the storage may be given the secret of another one.
        is_shown = not name.startswith("storage.")
        shown_value = repr(value) if is_shown else f"a text of {len(str(value))} characters"
        return cls(
            f"option '{name}' expects {expected}, found {shown_value}.",
            hint=hint or f"give '{name}' as {expected}.",
            option=name,
        )

    @classmethod
    def conflict(cls, name: str, other: str, *, why: str = "", hint: str = "") -> Self:
        """Return the error for two contradictory options, each with or without its value."""
        return cls(
            f"options '{name}' and '{other}' contradict each other{why and ': '}{why}.",
            hint=hint or "give one of them.",
            option=name.partition("=")[0],
            other=other.partition("=")[0],
        )

    @classmethod
    def refused(cls, name: str, reason: str, *, hint: str) -> Self:
        """Return the error for an option that does not apply here."""
        return cls(f"option '{name}' {reason}.", hint=hint, option=name)

    @classmethod
    def fixed(cls, name: str, value: str, own: str | None, *, why: str = "") -> Self:
        """Return the error for an option that differs from the table's fixed value."""
        current = f"the table has '{own}'" if own else "the table has none"
        return cls(
            f"option '{name}' is '{value}', but {current}, and its first write fixed that"
            f"{why and ', because '}{why}.",
            hint="drop the option, or write into a new table.",
            option=name,
            value=value,
            own=own,
        )

    @classmethod
    def not_one_of(cls, name: str, value: str, choices: Iterable[str]) -> Self:
        names = list(choices)
        near = nearest(value, names)
        hint = f"Did you mean '{near}'?" if near else f"give '{name}' as one of them."
        return cls.invalid(name, value, f"one of {', '.join(names)}", hint=hint)


def require_plain(path: str, *, option: str = "path") -> None:
    """Raise `OptionError` for a URL with credentials, a query or a fragment.

    Every location is checked where it is read, so that no later error, log line, plan or metric can
    show a secret. Local paths may contain any character.
    """
    parts = _URL.match(path)
    if parts is None:
        return
    scheme, authority, folder, mark = parts.groups()
    if _AUTHORITY.fullmatch(authority) is None:
        raise OptionError(
            f"the URL '{scheme}***' must name its bucket or host without credentials.",
            hint="give credentials and the address of a server in 'storage' options "
            "(docs/object-stores.md); Spark shows the path of a query.",
            option=option,
        )
    if mark:
        raise OptionError(
            f"the URL '{scheme}{authority}{folder}{mark}***' has a query or fragment.",
            hint="leave it away. A signature (SAS) goes into 'storage.sas_key'; where the "
            "mark is a part of a name, write %3F for '?' and %23 for '#' after file://.",
            option=option,
        )


class SchemaError(UpsertFlowError, ValueError):
    """The row columns do not fit the table's columns."""

    code = "SCHEMA"

    @classmethod
    def missing_column(cls, name: str, available: Iterable[str], *, role: str) -> Self:
        columns = list(available)
        near = nearest(name, columns)
        return cls(
            f"the {role} '{name}' is not among the columns ({', '.join(columns) or 'none'}).",
            hint=f"Did you mean '{near}'?" if near else "name one of them, or add that column.",
            column=name,
            role=role,
        )


class DataError(UpsertFlowError, ValueError):
    """A row cannot become a command: its key or order is null, or its order is ambiguous."""

    code = "DATA"


class PlanError(UpsertFlowError, ValueError):
    """A plan cannot be run: a node or an expression in it is invalid."""

    code = "PLAN"

    @classmethod
    def missing_column(cls, name: str, available: Iterable[str]) -> Self:
        columns = list(available)
        near = nearest(name, columns)
        return cls(
            f"there is no column '{name}' among {', '.join(columns) or 'none'}.",
            hint=f"Did you mean '{near}'?" if near else "name one of them.",
            column=name,
        )


class GraphError(UpsertFlowError, ValueError):
    """A graph cannot be run; the field ``operators`` names the operators involved."""

    code = "GRAPH"


class PlacementError(GraphError):
    """Two replicas must share a processing element, and must not.

    The fields ``one`` and ``other`` contain their names.
    """

    code = "PLACEMENT"

    @classmethod
    def clash(cls, one: str, other: str, *, together: str, apart: str) -> Self:
        return cls(
            f"'{one}' and '{other}' must share a processing element, since {together}, and must "
            f"not, since {apart}.",
            hint="take one of the two back: colocate, or exlocate and isolate.",
            one=one,
            other=other,
            operators=tuple(dict.fromkeys(name.partition("[")[0] for name in (one, other))),
        )


class WidthError(UpsertFlowError, ValueError):
    """A region cannot get the requested width."""

    code = "WIDTH"


class TaskError(UpsertFlowError, RuntimeError):
    """A task cannot perform the requested call in its current state."""

    code = "TASK"


class TableNotFoundError(UpsertFlowError, FileNotFoundError):
    """There is no table at the path."""

    code = "TABLE_NOT_FOUND"

    @classmethod
    def at(cls, path: str, *, may_wait: bool = False) -> Self:
        """Return the error for a path without a table."""
        wait = f" (a read waits for it with {setting('tableTimeout', '5 minutes')})"
        hint = (
            "check the 'path' option, or write to it once: the first write makes the table"
            f"{wait if may_wait else ''}. Where many lie below the path, read one of them by its "
            f"own, or all with {setting('inputsPattern', '*')}."
        )
        if "{" in path:
            hint = (
                "columns in braces are for writes. Read one of the tables by its own path "
                "('upsertflow tables' lists them), or all below the root with "
                f"{setting('inputsPattern', '*')}."
            )
        return cls(
            f"there is no upsertflow table at '{path}' (no version 0 in its _log folder).",
            hint=hint,
            path=path,
        )


class TableExistsError(UpsertFlowError, FileExistsError):
    """A table already exists at the path."""

    code = "TABLE_EXISTS"

    @classmethod
    def at(cls, path: str) -> Self:
        return cls(
            f"at '{path}' lies a table that would have to be another one.",
            hint="open it with Table.open, or choose another path.",
            path=path,
        )


class CorruptionError(UpsertFlowError):
    """A table file is missing, short or altered. Do not retry; restore the file."""

    code = "CORRUPTION"

    @classmethod
    def in_file(cls, path: str, expected: str, found: str) -> Self:
        return cls(
            f"damaged file '{path}': expected {expected}, found {found}.",
            hint="restore this file from a copy, or read an older version that does not use it; "
            "nothing was changed.",
            path=path,
        )

    @classmethod
    def gap(cls, path: str, version: int, newest: int) -> Self:
        return cls(
            f"'{path}' is missing: expected version {version}, because the log has a version "
            f"{newest}.",
            hint="restore this file from a copy of the table; nothing was read or changed.",
            path=path,
            version=version,
            newest=newest,
        )


class NewerFormatError(UpsertFlowError):
    """A newer version of this package wrote the data in an unknown format."""

    code = "NEWER_FORMAT"

    @classmethod
    def of(cls, what: str, found: int, known: int) -> Self:
        return cls(
            f"{what} has format {found}, which a newer version of upsertflow writes; this one "
            f"knows formats up to {known}.",
            hint="upgrade upsertflow on the driver, on every executor and wherever else the table "
            "is read or written. Nothing is damaged, and nothing was changed.",
            found=found,
            known=known,
        )


class EarlierFormatError(UpsertFlowError):
    """A development version of this package wrote the data in an unsupported format."""

    code = "EARLIER_FORMAT"

    @classmethod
    def of(cls, what: str, found: int, known: int) -> Self:
        return cls(
            f"{what} has format {found}, of an earlier development version of upsertflow; this one "
            f"knows format {known}.",
            hint="make the table anew from its source at another path, or from what the version "
            "that wrote it reads. Nothing is damaged, and nothing was changed.",
            found=found,
            known=known,
        )


class DataLossError(UpsertFlowError):
    """Changes that a reader has not read are gone, or a version does not exist."""

    code = "DATA_LOSS"

    @classmethod
    def changes_expired(cls, asked: str, *, lower: int, since: int, newest: int) -> Self:
        """Return the error for expired changes.

        Its fields contain the lost versions from ``gap_from`` to ``gap_to``, both inclusive, and
        the ``reason``.
        """
        return cls(
            f"{asked} was asked for, but changes can be read from version {since + 1} to "
            f"{newest} only: they need the state before them, and what was before version "
            f"{since} was expired.",
            hint="do one of three: (1) begin anew: a stream with a new checkpointLocation and "
            "without a starting version delivers the whole table first; (2) go on without what "
            f"is gone, by {setting('failOnDataLoss', 'false')} or "
            f"{setting('startingVersion', 'earliest')}, if sums that miss changes are of use to "
            "you; (3) keep more from now on, by a longer --retain of 'upsertflow expire', or by "
            "the option 'consumerId' of the stream.",
            gap_from=lower,
            gap_to=since,
            reason="expired",
            since=since,
            newest=newest,
        )


class VersionNotFoundError(DataLossError, LookupError):
    """The version, time or batch in a read is expired, or does not exist yet.

    Nothing is lost: you can read another version. It is a `DataLossError`, so that code for expired
    data handles this error, too.
    """

    code = "VERSION_NOT_FOUND"

    @classmethod
    def expired(cls, name: str, *, since: int, newest: int) -> Self:
        return cls(
            f"{name} is expired: the table can be read from version {since} to {newest}.",
            hint=f"do one of three: (1) read version {since} or a newer one; (2) read a copy of "
            "the table that was made before the expiry; (3) keep more from now on, by a longer "
            "--retain of 'upsertflow expire', or by the option 'consumerId' of a stream.",
            since=since,
            newest=newest,
        )

    @classmethod
    def future(
        cls, name: str, version: int, *, since: int, newest: int, last: int | None = None
    ) -> Self:
        """Return the error for a version that does not exist yet."""
        return cls(
            f"{name} {version} does not exist: the newest version is {newest}.",
            hint=f"give a version from {since} to {newest if last is None else last}.",
            version=version,
            since=since,
            newest=newest,
        )


class OtherTableError(UpsertFlowError):
    """The path contains another table, an older copy, or nothing, instead of the expected table."""

    code = "OTHER_TABLE"

    @classmethod
    def at(cls, path: str, who: str, expected: str, found: str, *, hint: str = "") -> Self:
        return cls(
            f"{who} belongs to {expected}, but at '{path}' lies {found}.",
            hint=hint
            or "put back what was there, if it was moved or replaced by mistake; else open the "
            "table anew (restart the program or the query). Nothing was committed.",
            path=path,
        )


class ClockError(UpsertFlowError):
    """The clock on this machine or a committer's is far ahead of the storage clock."""

    code = "CLOCK"

    @classmethod
    def ahead(cls, path: str, ours: str, theirs: str) -> Self:
        return cls(
            f"this machine's clock says {ours}, and the storage of '{path}' says {theirs}. Nothing "
            "was committed.",
            hint="set the clock of this machine (NTP); times in the log only grow, so that a wrong "
            "one would stay.",
            path=path,
        )

    @classmethod
    def in_log(cls, path: str, version: int, theirs: str) -> Self:
        return cls(
            f"version {version} of '{path}' was committed at {theirs}, which is yet to come: by "
            "such times nothing can be expired. Nothing was.",
            hint="run 'upsertflow repair-clock' on the table, once the clocks of all writers are "
            "right.",
            path=path,
            version=version,
        )


class ContentionError(UpsertFlowError, TimeoutError):
    """Other writers won every race for the next version."""

    code = "CONTENTION"


class TableFullError(UpsertFlowError):
    """The slowest consumer's backlog fills the table's caps; nothing was stored."""

    code = "TABLE_FULL"

    @classmethod
    def of(
        cls,
        path: str,
        *,
        epochs: int,
        bytes: int,
        epochs_max: int | None,
        bytes_max: int | None,
        upper: int,
        consumer: str,
        version: int,
    ) -> Self:
        """Return the error for a write without room."""
        caps = (("epochs", epochs, epochs_max), ("bytes", bytes, bytes_max))
        parts = [f"{held} of {most} {label}" for label, held, most in caps if most is not None]
        return cls(
            f"there is no room in '{path}' before version {upper}: the consumer '{consumer}' has "
            f"read up to version {version}, and behind that lie {' and '.join(parts)}. Nothing was "
            "written.",
            hint=f"see why '{consumer}' does not go on, and write again; if it is no more, run "
            f"'upsertflow consumers --release {consumer}'. To hold more, raise the table's "
            f"{setting('maxBacklogEpochs', is_property=True)} or "
            f"{setting('maxBacklogBytes', is_property=True)}; to wait for room, give it "
            f"{setting('onFull', 'wait', is_property=True)}.",
            path=path,
            epochs=epochs,
            bytes=bytes,
            epochs_max=epochs_max,
            bytes_max=bytes_max,
            upper=upper,
            consumer=consumer,
            version=version,
        )


class BatchTooLargeError(UpsertFlowError, ValueError):
    """A single batch exceeds the maximum backlog in bytes; retries cannot succeed."""

    code = "BATCH_TOO_LARGE"

    @classmethod
    def of(cls, path: str, *, bytes: int, bytes_max: int) -> Self:
        return cls(
            f"the batch has {bytes} bytes, and '{path}' may never hold more than {bytes_max} that "
            "a consumer has not read. Nothing was written.",
            hint="write smaller batches, or raise the table's "
            # Plus the backlog that the consumer may already have, up to the cap.
            f"{setting('maxBacklogBytes', str(bytes + bytes_max), is_property=True)}.",
            path=path,
            bytes=bytes,
            bytes_max=bytes_max,
        )


class ThrottledError(UpsertFlowError):
    """A consumer is overloaded, and the table lets it slow down writers; nothing was stored."""

    code = "THROTTLED"

    @classmethod
    def of(cls, path: str, *, consumer: str, pressure: float, retry_after_ms: int) -> Self:
        return cls(
            f"the consumer '{consumer}' of '{path}' cannot keep up (pressure {pressure:.2f} of 1). "
            "Nothing was written.",
            hint=f"write again, unchanged, in {retry_after_ms} ms. To write in spite of it, give "
            f"{setting('disableBackpressure', 'true')}; the table's property 'backpressure' "
            "decides whether consumers may slow down its writers at all.",
            path=path,
            consumer=consumer,
            pressure=pressure,
            retry_after_ms=retry_after_ms,
        )


class MemoryLimitError(UpsertFlowError, MemoryError):
    """The required memory exceeds the limit."""

    code = "MEMORY_LIMIT"

    @classmethod
    def of(cls, needed: int, limit: int) -> Self:
        return cls(
            f"{needed} bytes are needed, but only {limit} are allowed, and nothing may be spilled.",
            hint="allow more, or allow to spill to disk.",
            needed=needed,
            limit=limit,
        )


class StorageError(UpsertFlowError, OSError):
    """A storage operation failed: no answer, no space, no permission, or a broken disk."""

    code = "STORAGE"
