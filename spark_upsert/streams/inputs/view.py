"""A view as an input: its rows first, then its changes step by step (`ViewInput`, `ViewRead`).

A step is one epoch of one of its tables. With ``consumerId`` a lease on each table keeps the oldest
version still read (docs/adr/0035).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange, hash_number
from spark_upsert.core.schema import CHANGELOG_FIELDS
from spark_upsert.errors import DataLossError, OptionError, PlanError
from spark_upsert.options.inputs import InputOptions
from spark_upsert.options.read import is_open
from spark_upsert.options.views import ViewOptions
from spark_upsert.store.records import MALFORMED, numbers, text
from spark_upsert.streams.inputs.inputs import Described
from spark_upsert.streams.inputs.protocol import Backlog, Input, ReadPiece
from spark_upsert.streams.inputs.table import SnapshotRemainder
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.reads.explain import explain_view
from spark_upsert.streams.reads.views import (
    ViewSplit,
    open_view,
    read_view,
    snapshot_splits,
    step_splits,
)
from spark_upsert.table.log.manifest import (
    KeptPosition,
    VersionsByInput,
    version_refs_from_json,
    version_refs_to_json,
)
from spark_upsert.table.log.snapshot import (
    require_ordered,
    resolve_ending_version,
    resolve_starting_version,
)
from spark_upsert.table.retention.expiry import retry_after_expiry
from spark_upsert.table.retention.leases import Lease
from spark_upsert.table.write.outcomes import NOTHING
from spark_upsert.views.relation import At
from spark_upsert.views.view import View, last_epoch


class Start(NamedTuple):
    """The starting position for changes."""

    at: dict[str, int]
    """Changes after this position are wanted."""
    has_rows: bool
    """Whether the rows at that position are read first."""


def require_bounds(view: View, options: ViewOptions) -> None:
    """Refuse bounds without a meaning for a view; raises `OptionError`."""
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


def starting_position(view: View, options: ViewOptions, newest: At) -> Start | None:
    """Return the starting position, None if no option sets it.

    A version number needs a plan over one live table. If a table's first version has rows, a read
    from it begins with the rows at all tables' first versions, as inserts.
    """
    version, time_ms = options.starting_version, options.starting_timestamp_ms
    if version is None and time_ms is None:
        return None
    at: dict[str, int] = {}
    born: list[str] = []
    for path in view.paths:
        log, inclusive = view.log(path), options.starting_inclusive
        look = log.refresh()
        lower = resolve_starting_version(
            look, version=version, time_ms=time_ms, is_inclusive=inclusive
        )
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


def ending_position(view: View, options: ViewOptions, newest: At, start: At) -> At:
    """Return the position where changes end, by default the newest."""
    version, time_ms = options.ending_version, options.ending_timestamp_ms
    if version is None and time_ms is None:
        return newest
    if time_ms is not None and options.ending_inclusive:
        end = view.at_timestamp(time_ms)
    else:
        end = {}
        for path in view.paths:
            log, inclusive = view.log(path), options.ending_inclusive
            upper = resolve_ending_version(
                log, version=version, time_ms=time_ms, is_inclusive=inclusive
            )
            end[path] = last_epoch(log, max(upper - 1, 0))
    if not is_open(options):
        for path, last in end.items():
            require_ordered(start[path] + 1, last + 1)
    return end


def batch_position(view: View, options: ViewOptions) -> At:
    """Return the position for a batch read, by default the newest."""
    if options.timestamp_as_of_ms is not None:
        return view.at_timestamp(options.timestamp_as_of_ms)
    if options.version_as_of is None:
        return view.newest()
    [path] = view.paths
    log = view.log(path)
    return {path: last_epoch(log, log.at(options.version_as_of).version)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPosition:
    """A position in a view's changes.

    ``at`` and ``origin`` are the versions now and at the stream's start, by table; ``plan`` is the
    plan's fingerprint. The JSON form has ``[table id, version, token]`` per table.
    """

    plan: str
    at: At
    origin: At
    snapshot: int | None = None
    """Rows with driving hashes below this number are delivered; None: all rows are."""
    begun: int | None = None
    """The value of ``snapshot`` at the origin."""
    places: VersionsByInput = field(default_factory=dict, compare=False)
    """The table versions for ``at``; follows from the other fields and the tables, as does
    ``pinned``.
    """
    pinned: VersionsByInput = field(default_factory=dict, compare=False)
    """Tables read at fixed versions, by ``path@version``."""

    def to_position(self) -> Position:
        """Return the position as stored in offsets; needs ``places``."""
        return Position.of(
            {
                "at": version_refs_to_json(self.places),
                "begun": _digits(self.begun),
                "origin": dict(self.origin),
                "pinned": version_refs_to_json(self.pinned),
                "plan": self.plan,
                "snapshot": _digits(self.snapshot),
            }
        )

    @property
    def marker(self) -> str:
        """The position text recorded in a materialized view."""
        return NOTHING if self.snapshot == 0 else self.kept.text

    @property
    def kept(self) -> KeptPosition:
        """The position as stored by a materialized view; needs ``places``."""
        return KeptPosition(at=self.places, pinned=self.pinned, snapshot=self.snapshot)

    @classmethod
    def of_marker(cls, marker: str, plan: str, paths: Sequence[str]) -> ViewPosition:
        """Parse a position text from a materialized view; raises `OptionError`."""
        try:
            recorded = KeptPosition.read(marker)
            if set(recorded.at) != set(paths):
                raise ValueError("the tables of another plan")
        except ValueError as error:
            raise OptionError.invalid(
                "startingPosition", marker, f"a position of {', '.join(paths)}"
            ) from error
        at = {path: table_ref.version for path, table_ref in recorded.at.items()}
        return cls(
            plan=plan,
            at=at,
            origin=at,
            snapshot=recorded.snapshot,
            begun=recorded.snapshot,
            places=recorded.at,
            pinned=recorded.pinned,
        )

    @classmethod
    def from_position(cls, position: Position, plan: str) -> ViewPosition:
        """Parse a stored position; raises `OptionError` if its plan's fingerprint differs."""
        try:
            record = position.record
            refs = version_refs_from_json(record["at"])
            view_position = cls(
                plan=text(record["plan"]),
                at={path: table_ref.version for path, table_ref in refs.items()},
                origin=numbers(record["origin"]),
                snapshot=_cut(record["snapshot"]),
                begun=_cut(record["begun"]),
                places=refs,
                pinned=version_refs_from_json(record["pinned"]),
            )
        except MALFORMED as error:
            raise OptionError(
                f"the checkpoint holds {position.text:.500}, which is no position of a view.",
                hint="this checkpoint belongs to another input; give the query a new "
                "checkpointLocation.",
            ) from error
        if view_position.plan != plan:
            raise OptionError(
                f"the checkpoint is of another plan ({view_position.plan}, and this is {plan}): "
                "what it delivered cannot be retracted by this one.",
                hint="run the plan that it was begun with (if a table has gained a column since, "
                "begin with view(path).select(...) of those that it had), or give the query a new "
                "checkpointLocation.",
            )
        return view_position


def _digits(cut: int | None) -> str | None:
    return None if cut is None else f"{cut:016x}"


def _cut(digits: Any) -> int | None:
    return None if digits is None else hash_number(digits)


_RENEWALS = 4
"""Renewals by an idle stream per lease lifetime."""


class ViewInput(Input):
    """A view as an input: its rows, then their changes (`Input`).

    Parameters
    ----------
    options : ViewOptions
        Streaming options.
    """

    def __init__(self, options: ViewOptions) -> None:
        self._options = options
        self._view: View | None = None
        self._seen: Position | None = None
        self._leases: dict[str, Lease] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks only read: the logs and their caches stay in the planning process.
        return ViewInput, (self._options,)

    # -- planning --------------------------------------------------------------------

    def head(self) -> Position:
        """Return the position after all available data (`Input.head`)."""
        view = self._opened()

        def newest_positions() -> Position:
            newest = view.newest()
            if self._seen is not None and self._unpack(self._seen).at == newest:
                return self._seen
            return self._pack(self._position(newest, origin=newest))

        self._seen = newest_versions = retry_after_expiry(newest_positions, view.urls)
        return newest_versions

    def identity(self) -> str:
        """Return the view's identity (`Input.identity`)."""
        return f"view {self._opened().plan.fingerprint()}"

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        """Return the unread data (`Input.backlog`); takes or renews the leases."""
        view = self._opened()
        newest = dict(view.newest() if head is None else self._unpack(head).at)
        known_position = None if position is None else self._unpack_checked(position)

        def held() -> ViewPosition:
            start_position = known_position or self._starting_position(
                self._readable_versions(newest)
            )
            self._hold(start_position.at)
            return start_position

        start = retry_after_expiry(held, view.urls)

        def at(reached: ViewPosition) -> Position:
            # A stream that has not moved keeps its position object, and so the same text.
            return (
                position
                if position is not None and reached == known_position
                else self._pack(reached)
            )

        targets = {path: max(version, newest[path]) for path, version in start.at.items()}
        end = replace(start, at=targets, snapshot=None)
        behind_snapshot = replace(start, snapshot=None)
        return Backlog(
            start=at(start),
            pieces=self._pieces(view, start, end.at),
            reach=partial(at, behind_snapshot if start.snapshot is not None else end),
            end=partial(at, end),
            is_at_rest=start == end == known_position and self._options.consumer is None,
        )

    def splits(self, start: Position | None, end: Position) -> list[ViewSplit]:
        """Return a batch's tasks (`Input.splits`)."""
        view = self._opened()
        last = self._unpack_checked(end)
        first = self._batch_start(last) if start is None else self._unpack_checked(start)
        self._hold(first.at)
        with view.use_cached_heads():
            splits: list[ViewSplit] = []
            if first.snapshot is not None:
                stop = HASH_END if last.snapshot is None else last.snapshot
                due = HashRange(first.snapshot, stop)
                splits += snapshot_splits(view, self._options, first.at, due)
            splits += step_splits(view, self._options, first.at, last.at)
        if view.grouping is None:
            return splits
        splits = splits or [ViewSplit((), ALL_HASHES, 0, 0)]
        return [replace(splits[0], marker_entry=(first.marker, last.marker)), *splits[1:]]

    def split_bytes(self, split: ViewSplit) -> int:
        """Estimate the bytes read by a split (`Input.split_bytes`)."""
        return split.bytes

    def commit(self, position: Position) -> None:
        """Advance the leases (`Input.commit`)."""
        if self._options.consumer is not None:
            self._renew(self._unpack(position).at)

    # -- positions -------------------------------------------------------------------

    def _opened(self) -> View:
        if self._view is None:
            self._view = open_view(self._options)
        return self._view

    def _position(self, at: At, *, origin: At, begun: int | None = None) -> ViewPosition:
        """Return a stream's starting position, without table identities."""
        plan = self._opened().plan.fingerprint()
        return ViewPosition(
            plan=plan, at=dict(at), origin=dict(origin), snapshot=begun, begun=begun
        )

    def _with_places(self, position: ViewPosition) -> ViewPosition:
        """Return a position with its tables' identities."""
        view = self._opened()
        return replace(
            position, places=view.table_versions(position.at), pinned=view.pinned_versions()
        )

    def _pack(self, position: ViewPosition) -> Position:
        return self._with_places(position).to_position()

    def _unpack(self, position: Position) -> ViewPosition:
        return ViewPosition.from_position(position, self._opened().plan.fingerprint())

    def _unpack_checked(self, position: Position) -> ViewPosition:
        """Parse a position; raises if its tables were replaced."""
        start = self._unpack(position)
        self._opened().require_same_tables(
            start.places,
            start.pinned,
            "the checkpoint of this query",
            "if the table was replaced by mistake, put it back. If it was made anew, give the "
            "query a new checkpointLocation, and let what it feeds begin anew, too.",
        )
        return start

    def _starting_position(self, newest: At) -> ViewPosition:
        """Return the starting position by the options."""
        view = self._opened()
        if self._options.starting_position is not None:
            marker, plan = self._options.starting_position, view.plan.fingerprint()
            first_position = ViewPosition.of_marker(marker, plan, view.paths)
            view.require_materialized_from(first_position.kept)
            return first_position
        start = starting_position(view, self._options, newest) or Start(dict(newest), has_rows=True)
        return self._position(start.at, origin=start.at, begun=0 if start.has_rows else None)

    def _readable_versions(self, newest: At) -> At:
        """Raise expired versions to each table's oldest readable version."""
        logs = {path: self._opened().log(path) for path in newest}
        return {path: max(version, logs[path].head().since) for path, version in newest.items()}

    def _batch_start(self, last: ViewPosition) -> ViewPosition:
        """Return the first batch's start position, which its end position contains."""
        began = self._position(last.origin, origin=last.origin, begun=last.begun)
        return self._with_places(began)

    # -- unread data -----------------------------------------------------------------

    def _pieces(self, view: View, start: ViewPosition, end: At) -> Iterator[ReadPiece]:
        """Yield the remaining rows, which never share a batch with steps, or the steps."""
        if start.snapshot is not None:
            yield self._rest_of_rows(view, start, start.snapshot)
            return
        at = dict(start.at)
        for moved in view.iter_epochs(start.at, end):
            at = {**at, moved.moved.path: moved.moved.version}
            next_position = replace(start, at=at)
            yield ReadPiece(
                steps=1,
                rows=moved.rows,
                bytes=moved.bytes,
                epochs=1,
                after=lambda _, position_after=next_position: self._pack(position_after),  # type: ignore[misc]
            )

    def _rest_of_rows(self, view: View, start: ViewPosition, cut: int) -> ReadPiece:
        manifests = [view.log(path).at(version) for path, version in start.at.items()]
        remainder = SnapshotRemainder.of(view.driving(start.at), cut)

        def after(taken: int) -> Position:
            reached = remainder.hash_after(taken)
            snapshot = None if reached >= HASH_END else reached
            return self._pack(replace(start, snapshot=snapshot))

        return ReadPiece(
            steps=remainder.steps,
            rows=remainder.of_all(sum(manifest.live_rows for manifest in manifests)),
            bytes=remainder.of_all(sum(manifest.bytes for manifest in manifests)),
            after=after,
        )

    # -- leases ----------------------------------------------------------------------

    def _hold(self, at: At) -> None:
        """Take the leases if none is held yet, else renew the due ones."""
        if self._options.consumer is None:
            return
        view = self._opened()
        if not self._leases:
            # A lease under this consumer name may be older: it must not move forward here.
            self._renew(view.clamp_to_leases(self._options.consumer, at))
            return
        for path, lease in self._leases.items():
            if view.tables[path].log.now_ms() > lease.renewed_ms + lease.ttl_ms // _RENEWALS:
                self._leases[path] = view.tables[path].hold(
                    lease.consumer, lease.version, ttl_ms=lease.ttl_ms
                )

    def _renew(self, at: At) -> None:
        consumer, ttl_ms = self._options.consumer, self._options.consumer_ttl_ms
        assert consumer is not None
        self._leases = self._opened().hold(consumer, at, ttl_ms=ttl_ms)

    # -- reading, in the tasks -------------------------------------------------------

    def read(self, split: ViewSplit) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows (`Input.read`)."""
        yield from read_view(split, self._options)


class ViewKind:
    """The view format (`ViewInput`, `ViewRead`)."""

    def describe(self, options: InputOptions) -> Described:
        """Return a view's read columns and identity (`InputFormat.describe`)."""
        if options.name:
            raise OptionError(
                f"the input '{options.name}' is a view, which is read alone.",
                hint="keep it as a table, and name that; or join within one plan.",
                option="plan",
            )
        view_options = ViewOptions.parse(options.own)
        view = open_view(view_options)
        require_bounds(view, view_options)
        if view.grouping is not None:
            stored_columns = view.grouping.stored_schema.columns
            return Described(stored_columns, f"view {view.plan.fingerprint()}")
        columns = view.relation.schema
        shown = pa.schema([*columns, *CHANGELOG_FIELDS]) if view_options.change_feed else columns
        return Described(shown, f"view {view.plan.fingerprint()}")

    def stream(self, options: InputOptions, columns: pa.Schema) -> Input:
        """Return a view as a stream input (`InputFormat.stream`)."""
        view_options = ViewOptions.parse(options.own)
        view_options.require_stream()
        return ViewInput(view_options)

    def batch(self, options: InputOptions, columns: pa.Schema) -> ViewRead:
        """Return a view's batch reader (`InputFormat.batch`)."""
        view_options = ViewOptions.parse(options.own)
        view_options.require_batch()
        if open_view(view_options).grouping is not None:
            raise PlanError(
                "a group gives what its rows contribute, step by step, and no rows.",
                hint="keep it first, .keep(path), and read that table.",
            )
        return ViewRead(view_options)


class ViewRead:
    """One view's batch read; pickled into the tasks."""

    def __init__(self, options: ViewOptions) -> None:
        self._options = options

    def splits(self) -> Sequence[ViewSplit]:
        """Return the tasks' splits."""
        view, options = open_view(self._options), self._options
        if not options.change_feed:
            return snapshot_splits(view, options, batch_position(view, options))
        newest = view.newest()
        start = starting_position(view, options, newest)
        assert start is not None, "of a batch it is required"
        rows = snapshot_splits(view, options, start.at) if start.has_rows else []
        return [
            *rows,
            *step_splits(view, options, start.at, ending_position(view, options, newest, start.at)),
        ]

    def identity(self) -> str:
        """Return the view's identity."""
        return f"view {open_view(self._options).plan.fingerprint()}"

    def split_bytes(self, split: ViewSplit) -> int:
        """Estimate the bytes read by a split."""
        return split.bytes

    def explain(self, splits: Sequence[ViewSplit]) -> str:
        """Describe the read of these splits as text."""
        return explain_view(open_view(self._options), splits)

    def read(self, split: ViewSplit) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows; called in a task."""
        yield from read_view(split, self._options)
