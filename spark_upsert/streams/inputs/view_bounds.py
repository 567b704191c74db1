"""The positions of a view that a read means: by versions of its one table, by times, or by words.

A number is a version of *one* table, so that the plan must follow one alone; others may be pinned.
`latest`, `earliest` and times mean a position of any number of tables.

The changes of a version are those after the position before it. Before the first version of a table
there is no position: if that version has rows (a first write makes table and rows in one), a read
from there on begins with the rows at the first versions of all its tables, as inserts.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.options.read import is_open
from spark_upsert.options.view import ViewOptions
from spark_upsert.table.versions import first_wanted, require_ordered, upper_wanted
from spark_upsert.views.relation import At
from spark_upsert.views.view import View, last_epoch


class Start(NamedTuple):
    """Where changes begin."""

    at: dict[str, int]
    """They are behind this position."""
    has_rows: bool
    """Whether the rows there come first."""


def require_bounds(view: View, options: ViewOptions) -> None:
    """Refuse bounds that mean nothing for a view.

    Raises
    ------
    OptionError
        A number is no version of one table; or groups are to be kept of a part of the rows.
    """
    for name, value, instead in (
        ("versionAsOf", options.version_as_of, "use 'timestampAsOf', or pin one by at_version()"),
        ("startingVersion", options.starting_version, "use 'startingTimestamp'"),
        ("endingVersion", options.ending_version, "use 'endingTimestamp'"),
    ):
        if isinstance(value, int) and len(view.paths) != 1:
            raise OptionError(
                f"{name}={value} names one table's version: {instead}; the plan follows "
                f"{', '.join(view.paths) or 'none'}.",
                hint=f"{instead}.",
                option=name,
            )
    if view.grouping is None:
        return
    for name, value, _ in (
        ("startingVersion", options.starting_version, None),
        ("startingTimestamp", options.starting_timestamp_ms, None),
    ):
        if value is not None:
            raise OptionError(
                f"'{name}' has no meaning for groups: sums of what changed since are no sums of "
                "the rows that there are.",
                hint="drop it; filter the rows of the view, if some of them are not meant.",
                option=name,
            )


def start_of(view: View, options: ViewOptions, newest: At) -> Start | None:
    """Return behind which position changes are wanted, None if nothing says.

    Raises
    ------
    DataLossError
        What comes from there on is expired; or a table has its first rows only behind the time.
    """
    version, time_ms = options.starting_version, options.starting_timestamp_ms
    if version is None and time_ms is None:
        return None
    at: dict[str, int] = {}
    born: list[str] = []
    for path in view.paths:
        log, inclusive = view.log(path), options.starting_inclusive
        look = log.look()
        lower = first_wanted(look, version=version, time_ms=time_ms, is_inclusive=inclusive)
        assert lower is not None
        look.require_changes(lower)
        at[path] = last_epoch(log, min(max(lower - 1, 0), newest[path]))
        if lower <= 0 and look.commit(0).is_epoch:
            born.append(path)
    if born and any(at.values()):
        raise DataLossError(
            f"the table at '{born[0]}' begins with rows behind that start, at which others have "
            "rows already: what its first rows change would be missed.",
            hint="begin where all tables of the plan are there, or with all rows: without a start.",
        )
    return Start(at, bool(born))


def end_of(view: View, options: ViewOptions, newest: At, start: At) -> At:
    """Return up to which position changes are wanted, by default all there are.

    Raises
    ------
    OptionError
        It is before the start.
    DataLossError
        It does not exist yet.
    """
    version, time_ms = options.ending_version, options.ending_timestamp_ms
    if version is None and time_ms is None:
        return newest
    if time_ms is not None and options.ending_inclusive:
        end = view.at_timestamp(time_ms)
    else:
        end = {}
        for path in view.paths:
            log, inclusive = view.log(path), options.ending_inclusive
            upper = upper_wanted(log, version=version, time_ms=time_ms, is_inclusive=inclusive)
            end[path] = last_epoch(log, max(upper - 1, 0))
    if not is_open(options):
        for path, last in end.items():
            require_ordered(start[path] + 1, last + 1)
    return end


def position_of(view: View, options: ViewOptions) -> At:
    """Return the position at which a batch reads the rows, by default the newest.

    Raises
    ------
    DataLossError
        The position does not exist, or is expired.
    """
    if options.timestamp_as_of_ms is not None:
        return view.at_timestamp(options.timestamp_as_of_ms)
    if options.version_as_of is None:
        return view.newest()
    [path] = view.paths
    log = view.log(path)
    return {path: last_epoch(log, log.at(options.version_as_of).version)}
