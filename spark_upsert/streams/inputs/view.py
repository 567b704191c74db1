"""A view as an input: first the rows that it has, then their changes step by step.

A step is an epoch of one of its tables. The offset names where each table stands, so that a batch
is a function of the plan, two positions and the tables' logs. With ``consumerId`` the input holds a
lease on every table, at the oldest version that it still reads: its position, or where the plan
pins the table. An expired version that is still needed is an error: retractions computed without it
would be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.hashing import HASH_END
from spark_upsert.options.view import ViewOptions
from spark_upsert.streams.inputs.input import Backlog, Input, ReadPiece
from spark_upsert.streams.inputs.rest import Rest
from spark_upsert.streams.inputs.view_bounds import Start, start_of
from spark_upsert.streams.inputs.view_position import ViewPosition
from spark_upsert.streams.offsets.position import Position
from spark_upsert.streams.reads.view_reads import open_view, read_view
from spark_upsert.streams.reads.view_splits import (
    ViewSplit,
    snapshot_splits,
    step_splits,
)
from spark_upsert.table.retention.leases import Lease
from spark_upsert.table.retention.overtaken import despite_expiry
from spark_upsert.views.relation import At
from spark_upsert.views.view import View

_RENEWALS = 4
"""An idle stream renews its leases this many times before they would lapse."""


class ViewInput(Input):
    """A view as an input: its rows, and how they change (`Input`).

    Parameters
    ----------
    options : ViewOptions
        Those of a stream.
    """

    def __init__(self, options: ViewOptions) -> None:
        self._options = options
        self._view: View | None = None
        self._seen: Position | None = None
        self._leases: dict[str, Lease] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks only read: the logs and what they have cached stay where batches are planned.
        return ViewInput, (self._options,)

    # -- planning --------------------------------------------------------------------

    def head(self) -> Position:
        """Return the position behind all there is (`Input.head`)."""
        view = self._opened()

        def seen() -> Position:
            newest = view.newest()
            if self._seen is not None and self._unpacked(self._seen).at == newest:
                return self._seen
            return self._packed(self._position(newest, origin=newest))

        self._seen = found = despite_expiry(seen, view.urls)
        return found

    def identity(self) -> str:
        """Return which view it is (`Input.identity`)."""
        return f"view {self._opened().plan.fingerprint()}"

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        """Return what lies before a position (`Input.backlog`); takes or renews the leases."""
        view = self._opened()
        newest = dict(view.newest() if head is None else self._unpacked(head).at)
        known = None if position is None else self._required(position)

        def held() -> ViewPosition:
            found = known or self._begin(self._kept(newest))
            self._hold(found.at)
            return found

        start = despite_expiry(held, view.urls)

        def at(reached: ViewPosition) -> Position:
            # A stream that has not moved is not placed anew: the same position has the same text.
            return position if position is not None and reached == known else self._packed(reached)

        ahead = {path: max(version, newest[path]) for path, version in start.at.items()}
        end = replace(start, at=ahead, snapshot=None)
        behind_snapshot = replace(start, snapshot=None)
        return Backlog(
            start=at(start),
            pieces=self._pieces(view, start, end.at),
            reach=partial(at, behind_snapshot if start.snapshot is not None else end),
            end=partial(at, end),
            is_at_rest=start == end == known and self._options.consumer is None,
        )

    def splits(self, start: Position | None, end: Position) -> list[ViewSplit]:
        """Return the work of a batch (`Input.splits`)."""
        view = self._opened()
        last = self._required(end)
        first = self._beginning(last) if start is None else self._required(start)
        self._hold(first.at)
        with view.resting():
            found: list[ViewSplit] = []
            if first.snapshot is not None:
                stop = HASH_END if last.snapshot is None else last.snapshot
                due = HashRange(first.snapshot, stop)
                found += snapshot_splits(view, self._options, first.at, due)
            found += step_splits(view, self._options, first.at, last.at)
        if view.grouping is None:
            return found
        found = found or [ViewSplit((), ALL_HASHES, 0, 0)]
        return [replace(found[0], marker=(first.marker, last.marker)), *found[1:]]

    def split_bytes(self, split: ViewSplit) -> int:
        """Estimate the bytes that a split reads (`Input.split_bytes`)."""
        return split.bytes

    def commit(self, position: Position) -> None:
        """Move the leases to a position (`Input.commit`)."""
        if self._options.consumer is not None:
            self._renew(self._unpacked(position).at)

    # -- where a stream stands -------------------------------------------------------

    def _opened(self) -> View:
        if self._view is None:
            self._view = open_view(self._options)
        return self._view

    def _position(self, at: At, *, origin: At, begun: int | None = None) -> ViewPosition:
        """Return a position, or where a stream begins, which both of its texts tell."""
        plan = self._opened().plan.fingerprint()
        return ViewPosition(
            plan=plan, at=dict(at), origin=dict(origin), snapshot=begun, begun=begun
        )

    def _placed(self, position: ViewPosition) -> ViewPosition:
        """Return a position with the identities of its tables."""
        view = self._opened()
        return replace(position, places=view.places(position.at), pinned=view.pinned())

    def _packed(self, position: ViewPosition) -> Position:
        return self._placed(position).packed()

    def _unpacked(self, position: Position) -> ViewPosition:
        return ViewPosition.unpacked(position, self._opened().plan.fingerprint())

    def _required(self, position: Position) -> ViewPosition:
        """Return a position in the very tables that are there."""
        found = self._unpacked(position)
        self._opened().require(
            found.places,
            found.pinned,
            "the checkpoint of this query",
            "if the table was replaced by mistake, put it back. If it was made anew, give the "
            "query a new checkpointLocation, and let what it feeds begin anew, too.",
        )
        return found

    def _begin(self, newest: At) -> ViewPosition:
        """Return where a stream begins, by its options."""
        view = self._opened()
        if self._options.starting_position is not None:
            marker, plan = self._options.starting_position, view.plan.fingerprint()
            found = ViewPosition.of_marker(marker, plan, view.paths)
            view.require_kept(found.kept)
            return found
        start = start_of(view, self._options, newest) or Start(dict(newest), has_rows=True)
        return self._position(start.at, origin=start.at, begun=0 if start.has_rows else None)

    def _kept(self, newest: At) -> At:
        """Return a position that was seen, or what expiries behind it have kept."""
        logs = {path: self._opened().log(path) for path in newest}
        return {path: max(version, logs[path].head().since) for path, version in newest.items()}

    def _beginning(self, last: ViewPosition) -> ViewPosition:
        """Return where the first batch began, which its end remembers."""
        began = self._position(last.origin, origin=last.origin, begun=last.begun)
        return self._placed(began)

    # -- what lies ahead -------------------------------------------------------------

    def _pieces(self, view: View, start: ViewPosition, end: At) -> Iterator[ReadPiece]:
        """Yield the rest of the rows, which are never in one batch with steps, or the steps."""
        if start.snapshot is not None:
            yield self._rest_of_rows(view, start, start.snapshot)
            return
        at = dict(start.at)
        for each in view.moved(start.at, end):
            at = {**at, each.moved.path: each.moved.version}
            behind = replace(start, at=at)
            yield ReadPiece(
                steps=1,
                rows=each.rows,
                bytes=each.bytes,
                epochs=1,
                after=lambda _, behind=behind: self._packed(behind),  # type: ignore[misc]
            )

    def _rest_of_rows(self, view: View, start: ViewPosition, cut: int) -> ReadPiece:
        manifests = [view.log(path).at(version) for path, version in start.at.items()]
        rest = Rest.of(view.driving(start.at), cut)

        def after(taken: int) -> Position:
            reached = rest.hash_behind(taken)
            snapshot = None if reached >= HASH_END else reached
            return self._packed(replace(start, snapshot=snapshot))

        return ReadPiece(
            steps=rest.steps,
            rows=rest.of_all(sum(each.live_rows for each in manifests)),
            bytes=rest.of_all(sum(each.bytes for each in manifests)),
            after=after,
        )

    # -- leases ----------------------------------------------------------------------

    def _hold(self, at: At) -> None:
        """Take the leases, if they are not held yet, or renew them where they stand if due."""
        if self._options.consumer is None:
            return
        view = self._opened()
        if not self._leases:
            # Another query may hold by this name what it has yet to read: `keep` names it by table.
            self._renew(view.not_beyond(self._options.consumer, at))
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
        """Yield the rows of a split (`Input.read`)."""
        yield from read_view(split, self._options)
