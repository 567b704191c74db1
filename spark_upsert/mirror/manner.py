"""Properties of a Delta table besides its rows: guarded, with a change feed, readable for how long.

Each stands in the Delta table itself, so that what a publication does not ask for stays as it is.
A property of the table asks with each publication.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_upsert.mirror.actions import GUARD, RETENTION, DeltaState, has_feed
from spark_upsert.table.log.caps import parse_flag
from spark_upsert.table.log.properties import (
    PUBLISH_FEED,
    PUBLISH_GUARD,
    PUBLISH_RETENTION,
    parse_retention,
)

_RETENTION_MS = 6 * 3_600_000
"""It is short, because each commit replaces the vectors of many files: of a mirror of 10 million
rows, a commit per second writes 4 GB an hour."""

_INTERVAL = re.compile(r"interval (\d+) seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What a Delta table is."""

    guard: bool = True
    """Whether writers that keep to the protocol are kept out."""
    change_feed: bool = False
    retention_ms: int = _RETENTION_MS
    """How long its versions can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The wishes of a publication; None leaves a property as it is."""

    guard: bool | None = None
    change_feed: bool | None = None
    retention_ms: int | None = None

    def or_else(self, properties: Mapping[str, str]) -> Asked:
        """Return what is asked for, else what the properties of the table say."""
        guard, feed, retention = self.guard, self.change_feed, self.retention_ms
        if guard is None and PUBLISH_GUARD in properties:
            guard = parse_flag(PUBLISH_GUARD, properties[PUBLISH_GUARD])
        if feed is None and PUBLISH_FEED in properties:
            feed = parse_flag(PUBLISH_FEED, properties[PUBLISH_FEED])
        if retention is None and PUBLISH_RETENTION in properties:
            retention = parse_retention(properties[PUBLISH_RETENTION])
        return Asked(guard=guard, change_feed=feed, retention_ms=retention)

    def upon(self, found: Manner) -> Manner:
        """Return what a Delta table becomes that is as it was found."""
        return Manner(
            guard=found.guard if self.guard is None else self.guard,
            change_feed=found.change_feed if self.change_feed is None else self.change_feed,
            retention_ms=found.retention_ms if self.retention_ms is None else self.retention_ms,
        )


AS_IT_IS = Asked()


def manner_of(state: DeltaState | None) -> Manner:
    """Return what a mirror is by its log; where there is none, what it becomes by default."""
    if state is None or state.shown is None:
        return Manner()
    configuration = state.metadata.get("configuration") or {}
    told = _INTERVAL.fullmatch(str(configuration.get(RETENTION, "")))
    return Manner(
        guard=GUARD in state.protocol.get("writerFeatures", ()),
        change_feed=has_feed(state.metadata),
        retention_ms=_RETENTION_MS if told is None else int(told[1]) * 1000,
    )
