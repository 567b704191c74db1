"""The properties of a table: their names, and the check of a value when it is set.

A bad value would be found only by the first compaction or expiry that reads it, long after the
write that set it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from spark_upsert.conversions.positions import BINLOG_NAMES, parse_binlog_names
from spark_upsert.errors import OptionError, did_you_mean, require_plain
from spark_upsert.model.durations import EXPECTED, render_ms, try_parse_ms
from spark_upsert.schedule.priority import PROPERTY as PRIORITY
from spark_upsert.schedule.priority import parse_priority
from spark_upsert.table.log.caps import (
    BACKPRESSURE,
    BYTES,
    EPOCHS,
    ON_FULL,
    parse_cap,
    parse_flag,
    parse_on_full,
)
from spark_upsert.table.log.indexed import INDEX_BY, SHOWS, parse_index_by
from spark_upsert.table.log.kept_position import HISTORY_OF, VIEW_PROPERTIES
from spark_upsert.table.log.tombstones import PROPERTY as TOMBSTONE_RETENTION
from spark_upsert.table.log.tombstones import TombstoneRetention

PUBLISH, PUBLISH_PATH = "publish", "publishPath"
PUBLISH_INTERVAL, PUBLISH_FEED = "publishInterval", "publishChangeFeed"
PUBLISH_RETENTION, PUBLISH_GUARD = "publishRetention", "publishGuard"
"""Whether, where, how often and how a table is mirrored (`spark_upsert.mirror`)."""

PUBLISH_RETENTION_MIN_MS = 3_600_000
"""A publisher cleans once an hour; a reader that has begun is not to lose its files."""


def parse_publish(text: str) -> bool:
    """Return whether a table is mirrored: as ``delta``, or ``none``."""
    if text.strip().lower() not in ("delta", "none"):
        raise OptionError.not_one_of(PUBLISH, text, ("delta", "none"))
    return text.strip().lower() == "delta"


def parse_interval(text: str) -> int:
    """Return how many milliseconds lie between two publications at least."""
    milliseconds = try_parse_ms(text)
    if milliseconds is None:
        raise OptionError.invalid(PUBLISH_INTERVAL, text, EXPECTED)
    return milliseconds


def parse_retention(text: str) -> int:
    """Return for how many milliseconds versions of a mirror can be travelled to."""
    milliseconds = try_parse_ms(text)
    if milliseconds is None or milliseconds < PUBLISH_RETENTION_MIN_MS:
        least = render_ms(PUBLISH_RETENTION_MIN_MS)
        raise OptionError.invalid(PUBLISH_RETENTION, text, f"at least {least}: {EXPECTED}")
    return milliseconds


ROW_TTL, ROW_TTL_BY = "rowTtl", "rowTtlBy"
"""How long rows stay, from which time on, and how often those are looked for that must go."""


COMMITTED = "_commit_timestamp"
"""The value of `ROW_TTL_BY` by which a row ages from the commit that wrote it last."""


def ages_ms(properties: Mapping[str, str]) -> int | None:
    """Return for how long a table needs its versions to know how old rows are; None: not at all."""
    if properties.get(ROW_TTL_BY, "").lower() != COMMITTED:
        return None
    return parse_ttl(ROW_TTL, properties.get(ROW_TTL, "none"))


DROPPED = "droppedColumns"
"""Columns that the table has given up, as JSON (`table.drop`); set by no user."""


def parse_ttl(name: str, text: str) -> int | None:
    """Return a duration in milliseconds; None for ``none``."""
    milliseconds = try_parse_ms(text)
    if not milliseconds and text.strip().lower() != "none":
        raise OptionError.invalid(name, text, f"'none', or {EXPECTED}")
    return milliseconds


_CHECKS: Mapping[str, Callable[[str], object]] = {
    PRIORITY: parse_priority,
    TOMBSTONE_RETENTION: TombstoneRetention.parse,
    BYTES: partial(parse_cap, BYTES),
    EPOCHS: partial(parse_cap, EPOCHS),
    ON_FULL: parse_on_full,
    BACKPRESSURE: partial(parse_flag, BACKPRESSURE),
    INDEX_BY: parse_index_by,
    PUBLISH: parse_publish,
    PUBLISH_PATH: partial(require_plain, option=PUBLISH_PATH),
    PUBLISH_INTERVAL: parse_interval,
    PUBLISH_FEED: partial(parse_flag, PUBLISH_FEED),
    PUBLISH_RETENTION: parse_retention,
    PUBLISH_GUARD: partial(parse_flag, PUBLISH_GUARD),
    ROW_TTL: partial(parse_ttl, ROW_TTL),
    ROW_TTL_BY: str,
    BINLOG_NAMES: parse_binlog_names,
}

INTERNAL: Mapping[str, str] = {
    **dict.fromkeys(VIEW_PROPERTIES, "a view that is materialized ('keep')"),
    HISTORY_OF: "'keep_history'",
    DROPPED: "'drop_columns'",
    SHOWS: "the step that advances an index",
}
"""The properties that only the code sets, and which code; another value locks the table."""

PROPERTIES = tuple(_CHECKS)
"""The names of those that are also write options."""


def checked(
    properties: Mapping[str, str] | None, present: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return properties that a user may give a table.

    Parameters
    ----------
    properties : mapping of str to str, optional
    present : mapping of str to str, optional
        The properties that the table has. Internal ones of these may be given back, as
        ``{**properties, ...}`` does, and change nothing.

    Raises
    ------
    OptionError
        A name is unknown or internal, or a value is invalid for its property.
    """
    given = dict(properties or {})
    for name in INTERNAL.keys() & given.keys() & (present or {}).keys():
        if given[name] == (present or {})[name]:
            del given[name]
    for name, value in given.items():
        if name in INTERNAL:
            raise OptionError(
                f"the property '{name}' is internal and cannot be set: {INTERNAL[name]} sets it.",
                hint=f"remove '{name}' from the properties.",
                option=name,
            )
        if name not in _CHECKS:
            raise OptionError(
                f"a table has no property '{name}'.",
                hint=did_you_mean(name, _CHECKS),
                option=name,
            )
        if not isinstance(value, str):
            raise OptionError.invalid(name, value, "a text")
        _CHECKS[name](value)
    return given
