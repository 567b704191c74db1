"""Declarations of options (`Option`), and the parser of names and values (`Options`).

Parser, reference page and refusals follow from the declaration. Names match without case, ``-`` and
``_``; an unknown name is an error naming the nearest one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import Enum
from inspect import get_annotations
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from spark_upsert.core.durations import EXPECTED, try_parse_ms
from spark_upsert.core.names import split_names
from spark_upsert.core.python_values import DURATION_MS_MAX
from spark_upsert.errors import OptionError, is_url, require_plain
from spark_upsert.options.spark import drop_spark_options, missing_path

_Member = TypeVar("_Member", bound=Enum)
T = TypeVar("T")


class Change(Enum):
    """When an option change takes effect."""

    FREE = "immediately; same rows"
    NEXT = "next batch"
    BEGINNING = "inputs not started yet"
    REFUSED = "refused"
    BATCH = "-"
    """Not applicable to streams."""


@dataclass(frozen=True, slots=True)
class Life:
    """The effect when an option changes between query restarts.

    A change causing duplicate or lost rows is refused. A batch planned before the restart uses the
    new options.

    Parameters
    ----------
    change : Change
    note : str
        Addition for the reference page.
    exact : Change, optional
        Effect in an exact order (options ``merge``, ``interleaveSeed``), if different.
    """

    change: Change
    note: str = ""
    exact: Change | None = None

    def __str__(self) -> str:
        sentences = [self.change.value]
        if self.exact is not None:
            sentences.append(f"{self.exact.value} in an exact order")
        if self.note:
            sentences.append(self.note)
        return "; ".join(sentences)


FREE, NEXT, REFUSED = Life(Change.FREE), Life(Change.NEXT), Life(Change.REFUSED)
BEGINNING, BATCH = Life(Change.BEGINNING), Life(Change.BATCH)
COUNTED = Life(Change.NEXT, exact=Change.REFUSED)
"""For options affecting row counts per epoch, on which an exact order depends."""

FIXED = Life(Change.REFUSED, "fixed by the first write; optional in later writes")
PROPERTY = Life(Change.NEXT, "if omitted, the table keeps its value")


STORAGE_PREFIX = "storage."
"""Prefix for object store options."""

COLUMN = "<column>"
"""Column placeholder in the names of options set per column."""

TABLE_PREFIX = "table."
"""Prefix for options applied to some tables in a routed write."""

NAMES: Mapping[str, Sequence[str]] = {
    "writes": [
        "path",
        "keys",
        "hashPrefix",
        "sequenceBy",
        "sequenceScope",
        "operation",
        "envelope",
        "keyFormat",
        "keySchema",
        "keySchemaId",
        "valueFormat",
        "valueSchema",
        "valueSchemaId",
        "valueSubject",
        "keySubject",
        "schemaRegistry.url",
        "schemaRegistry.user",
        "schemaRegistry.password",
        "schemaRegistry.token",
        "schemaRegistry.headers",
        "schemaRegistry.caFile",
        "timeUnit",
        "timeUnit.<column>",
        "decimalHandling",
        "onTruncate",
        "unavailableValuePlaceholder",
        "missingFields",
        "nullsAsDeletes",
        "ignoreNullUpdates",
        "ignoreNullUpdatesColumnList",
        "ignoreNullUpdatesExceptColumnList",
        "columnsToUpdate",
        "onError",
        "errorColumn",
        "onUnknown",
        "applyAsDeletes",
        "columnList",
        "exceptColumnList",
        "allowNonEmptyPath",
        "mergeSchema",
        "mergeEngine",
        "aggregate.<column>",
        "sequenceBy.<column>",
        "tombstoneRetention",
        "maxBacklogEpochs",
        "maxBacklogBytes",
        "rowTtl",
        "rowTtlBy",
        "onFull",
        "backpressure",
        "indexBy",
        "publish",
        "publishPath",
        "publishInterval",
        "publishChangeFeed",
        "publishRetention",
        "publishGuard",
        "binlogNames",
        "priority",
        "onFullTimeout",
        "disableBackpressure",
        "ties",
        "lateRows",
        "allowUnordered",
        "allowMissingBatches",
        "txnAppId",
        "txnVersion",
        "checkpointLocation",
        "deferred",
    ],
    "routed": [
        "path",
        "table.<pattern>.<option>",
        "createTables",
        "tablesMax",
        "onTableError",
        "takeOver",
        "groupRetention",
        "commitThreads",
    ],
    "reads": [
        "plan",
        "onError",
        "path",
        "versionAsOf",
        "timestampAsOf",
        "filter",
        "readChangeFeed",
        "ignoreDeletes",
        "startingVersion",
        "startingTimestamp",
        "startingPosition",
        "endingVersion",
        "endingTimestamp",
        "startingBoundInclusive",
        "endingBoundInclusive",
        "deduplicationMode",
        "emitUnchanged",
        "computeUpdates",
        "readHistory",
        "validBy",
        "trackHistoryColumnList",
        "trackHistoryExceptColumnList",
        "maxRowsPerTrigger",
        "maxBytesPerTrigger",
        "maxEpochsPerTrigger",
        "minRowsPerTrigger",
        "maxTriggerDelay",
        "latencyTarget",
        "parallelism",
        "columns",
        "deferred",
        "splits",
        "failOnDataLoss",
        "consumerId",
        "consumerTtl",
        "tableTimeout",
        "raw",
        "metadata",
    ],
    "inputs": [
        "inputs",
        "inputsPattern",
        "consistent",
        "asOfBatch",
        "asOfLsn",
        "asOfSourceTime",
        "input.<name>.<option>",
        "input.<name>.format",
        "input.<name>.priority",
        "autoPriority",
        "merge",
        "interleaveSeed",
        "mergeSchema",
        "allowInputRemoval",
        "mergeColumns",
        "discoveryInterval",
        "discoveryRequests",
        "offsetsPath",
    ],
    "postgres": [
        "url",
        "passwordCommand",
        "spool",
        "slotName",
        "publicationName",
        "tableIncludeList",
        "tableExcludeList",
        "maxRowsPerTrigger",
        "parallelism",
    ],
}
"""All option names per scope: writes to one table, writes to many tables, reads from one table or
view, reads from several inputs, and streams from PostgreSQL. A test compares them with the
declarations."""

GROUP = "_group"
"""Folder for the group table below a root."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


def fold(name: str) -> str:
    """Normalize an option name for comparison."""
    return name.lower().replace("-", "").replace("_", "")


def absolute_path(path: str, *, option: str = "path") -> str:
    """Return an absolute path or the URL; raise if it contains a secret."""
    require_plain(path, option=option)
    return path if is_url(path) else os.path.abspath(path)


def path_below(root: str, folder: str) -> str:
    """Join a folder to a root path or URL; escapes the folder in a URL."""
    # A URL holds no bare '%', '#' or '?'.
    escaped = quote(folder, safe="/!$&'()*+,:;=@~") if ":/" in root else folder
    return f"{root.rstrip('/')}/{escaped}"


def whole_number(text: str, *, bits: int = 63) -> int | None:
    """Parse an integer; None for other texts and for integers with more bits.

    >>> whole_number("-7"), whole_number("9" * 5000), whole_number("²"), whole_number("1_0")
    (-7, None, None, None)
    """
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number.bit_length() <= bits else None


class Options:
    """Options passed by the user, validated against the known names."""

    def __init__(self, texts_by_name: Mapping[str, str], known: Collection[str]) -> None:
        by_fold = {fold(name): name for name in known if COLUMN not in name}
        families = {fold(name.removesuffix(COLUMN)): name for name in known if COLUMN in name}
        self.storage: dict[str, str] = {}
        self._columns: dict[str, dict[str, str]] = {name: {} for name in families.values()}
        self._values: dict[str, str] = {}
        for name, value in drop_spark_options(texts_by_name).items():
            if name.lower().startswith(STORAGE_PREFIX):
                self.storage[name[len(STORAGE_PREFIX) :].lower()] = value
                continue
            prefix, dot, column = name.partition(".")
            family = families.get(fold(prefix + dot))
            if family is not None and column:
                self._columns[family][column] = value
                continue
            option = by_fold.get(fold(name))
            if option is None:
                raise _unknown_option_error(name, known)
            if self._values.get(option, value) != value:
                raise OptionError(
                    # Without the values: one may be a password.
                    f"option '{option}' is given twice, with different values.",
                    hint="give it once; case, '-' and '_' do not tell options apart.",
                )
            self._values[option] = value

    def text(self, name: str) -> str | None:
        """Return an option's text, None if absent or empty."""
        return self._values.get(name, "").strip() or None

    def raw(self, name: str) -> str | None:
        """Return an option's text with surrounding blanks; None if absent."""
        return self._values.get(name)

    def by_column(self, name: str) -> Mapping[str, str]:
        """Return the values for a per-column option, by column."""
        return self._columns[name]

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a Boolean."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError.invalid(name, value, "'true' or 'false'")
        return value.lower() == "true"

    def number(self, name: str, *, least: int = 0) -> int | None:
        """Return an integer, at least ``least``; None if absent."""
        value = self.text(name)
        if value is None:
            return None
        number = whole_number(value)
        if number is None or number < least:
            raise OptionError.invalid(
                name, value, f"a whole number of at least {least} and below 2**63"
            )
        return number

    def duration_ms(self, name: str) -> int | None:
        """Return a positive duration in milliseconds; None if absent."""
        value = self.text(name)
        if value is None:
            return None
        duration = try_parse_ms(value)
        # Longer ones would become records rejected by readers.
        if not duration or duration > DURATION_MS_MAX:
            raise OptionError.invalid(name, value, f"{EXPECTED}, up to 8 030 years")
        return duration

    def names(self, name: str) -> tuple[str, ...]:
        """Return comma-separated names; names in backquotes may contain commas."""
        value = self.text(name)
        return () if value is None else split_names(name, value)

    def timestamp_ms(self, name: str) -> int | None:
        """Return a time in milliseconds since 1970, UTC by default; None if absent."""
        value = self.text(name)
        if value is None:
            return None
        if (number := whole_number(value)) is not None:
            return number
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            expected = "a time such as '2026-01-31T12:00:00Z', or milliseconds since 1970"
            raise OptionError.invalid(name, value, expected) from None
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return int(time.timestamp() * 1000)

    def refuse_together(self, *names: str) -> None:
        """Raise if more than one option in a set is present."""
        given_names = [name for name in names if self.text(name) is not None]
        if len(given_names) > 1:
            raise OptionError.conflict(given_names[0], given_names[1])

    def refuse(self, names: str | Iterable[str], reason: str, *, hint: str) -> None:
        """Raise if an inapplicable option is present."""
        for name in (names,) if isinstance(names, str) else names:
            if self.text(name) is not None:
                raise OptionError.refused(name, reason, hint=hint)

    def path(self, name: str = "path") -> str:
        """Return the table's absolute path; raise if absent."""
        path = self.text(name)
        if path is None:
            raise missing_path()
        # A task may run in another folder than the driver: a relative path is the driver's.
        return absolute_path(path, option=name)


def _unknown_option_error(name: str, known: Collection[str]) -> OptionError:
    """Return the error for an unknown name; it mentions another scope with the name."""
    elsewhere = {
        scope: option
        for scope, options in NAMES.items()
        for option in options
        if fold(option) == fold(name)
    }
    if "routed" in elsewhere or name.lower().startswith(TABLE_PREFIX):
        return OptionError(
            f"option '{elsewhere.get('routed', name)}' belongs to writes into many tables, and "
            "'path' names no column.",
            hint="write columns in braces, as in '/lake/{topic}', or drop the option.",
            option=name,
        )
    for scope, side in (("writes", "writes"), ("reads", "reads"), ("inputs", "reads")):
        if scope in elsewhere:
            return OptionError(
                f"option '{elsewhere[scope]}' belongs to {side} only.",
                hint="drop it here.",
                option=name,
            )
    return OptionError.unknown(name, known)


def choice(options: Options, name: str, members: type[_Member]) -> _Member | None:
    """Return the selected enum member, None if absent."""
    value = options.text(name)
    return None if value is None else member(name, value, members)


def member(name: str, value: str, members: type[_Member]) -> _Member:
    """Return the enum member with a value; raises `OptionError`."""
    return members(one_of(name, value, [member.value for member in members]))


def one_of(name: str, value: str, known: Sequence[str]) -> str:
    """Return the known value matching a value after `fold`.

    Raises `OptionError` if there is none.
    """
    by_fold = {fold(known_choice): known_choice for known_choice in known}
    matching = by_fold.get(fold(value.strip()))
    if matching is None:
        raise OptionError.not_one_of(name, value, known)
    return matching


_ONE, _TOGETHER, _PART = "option", "options", "part"
"""Keys in dataclass field metadata."""


NO_NAMES: tuple[str, ...] = ()
"""Default for column-naming options."""


class AppliesTo(Enum):
    """The only read or write mode accepting an option."""

    STREAM = "streams"
    BATCH = "batches"


@dataclass(frozen=True)
class Option(Generic[T]):
    """Declares an option.

    Parameters
    ----------
    name : str
        Name on the reference page.
    read : callable
        Reads the value from `Options` by name; None if absent. Raises `OptionError`.
    life : Life
        Effect when the option changes between query restarts.
    default : optional
        Value if absent.
    required : bool
        Whether `read` raises if the option is absent.
    is_of_whole : bool
        Whether it applies to the complete read or write and cannot be set for one input or table.
    only : AppliesTo, optional
        The only read or write mode accepting it.
    excludes : tuple of str
        Contradicting options. An input or table setting one does not inherit the others.
    """

    name: str
    read: Callable[[Options, str], T | None]
    life: Life
    default: T | None = None
    required: bool = False
    is_of_whole: bool = False
    only: AppliesTo | None = None
    excludes: tuple[str, ...] = ()
    meaning: str = ""

    def with_meaning(self, meaning: str) -> Option[T]:
        """Return a copy with its text for the reference page."""
        return replace(self, meaning=meaning)

    def as_field(self, meaning: str) -> T:
        """Return a dataclass field for this option; without a default the field may be None."""
        default: Any = MISSING if self.required else self.default
        declared_field: T = field(default=default, metadata={_ONE: self.with_meaning(meaning)})
        return declared_field


def combined_field(*options: Option[Any], default: Any = MISSING, repr: bool = True) -> Any:
    """Return a field computed from several options; `read_values` skips it.

    Without a default it is an empty mapping.
    """
    how: dict[str, Any] = {"default_factory": dict} if default is MISSING else {"default": default}
    return field(**how, repr=repr, metadata={_TOGETHER: options})


def nested_field(cls: type[T]) -> T:
    """Return a field for a nested options class."""
    return field(default_factory=cls, metadata={_PART: cls})


def declared(*classes: Any) -> dict[str, Option[Any]]:
    """Return options declared by classes, by name, in field order."""
    return {option.name: option for cls in classes for option in _options_of(cls)}


def _options_of(cls: Any) -> Iterator[Option[Any]]:
    own_annotations = get_annotations(cls)  # What is inherited, another class declares.
    for option_field in fields(cls):
        if option_field.name not in own_annotations:
            continue
        if _ONE in option_field.metadata:
            yield option_field.metadata[_ONE]
        elif _PART in option_field.metadata:
            yield from _options_of(option_field.metadata[_PART])
        else:
            yield from option_field.metadata.get(_TOGETHER, ())


def _iter_single_fields(cls: Any) -> Iterator[tuple[str, Option[Any], object]]:
    """Yield name, option and default for each field with one option."""
    for option_field in fields(cls):
        if _ONE in option_field.metadata:
            yield option_field.name, option_field.metadata[_ONE], option_field.default


def read_values(cls: Any, options: Options) -> dict[str, Any]:
    """Read all fields with one option; returns the present values, by field name.

    Raises `OptionError` for a malformed value and for mutually exclusive options.
    """
    held = list(_iter_single_fields(cls))
    for _, option, _ in held:
        for excluded_name in option.excludes:
            options.refuse_together(option.name, excluded_name)
    read = ((name, option.read(options, option.name)) for name, option, _ in held)
    return {name: value for name, value in read if value is not None}


def options_only_for(held: Any, only: AppliesTo) -> list[str]:
    """Return non-default options restricted to batches or to streams."""
    return [option.name for option in _non_default(held) if option.only is only]


def select_given(held: Any, *names: str) -> list[str]:
    """Return the names with a non-default value, in order."""
    given_names = {option.name for option in _non_default(held)}
    return [name for name in names if name in given_names]


def _non_default(held: Any) -> Iterator[Option[Any]]:
    for name, option, default in _iter_single_fields(type(held)):
        if getattr(held, name) != default:
            yield option


def options_affecting_counts(held: Any) -> dict[str, Any]:
    """Return options affecting row counts per epoch, with their values.

    An exact order refuses to change them (`Life.exact`).
    """
    return {
        option.name: getattr(held, name)
        for name, option, _ in _iter_single_fields(type(held))
        if option.life.exact is Change.REFUSED
    }


def names_for_whole_operation(options: Mapping[str, Option[Any]]) -> tuple[str, ...]:
    """Return options not settable for one input or table."""
    return tuple(name for name, option in options.items() if option.is_of_whole)


def exclusive_groups(options: Mapping[str, Option[Any]]) -> tuple[tuple[str, ...], ...]:
    """Return groups from which one input or table can set only one option."""
    return tuple(
        (name, *option.excludes)
        for name, option in options.items()
        if option.excludes and not option.is_of_whole
    )


def flag(options: Options, name: str) -> bool | None:
    """Read a Boolean; None if absent."""
    return None if options.text(name) is None else options.flag(name)


def at_least(least: int) -> Callable[[Options, str], int | None]:
    """Return a reader for integers of at least ``least``."""
    return lambda options, name: options.number(name, least=least)


def member_of(members: type[_Member]) -> Callable[[Options, str], _Member | None]:
    """Return a reader for enum members."""
    return lambda options, name: choice(options, name, members)
