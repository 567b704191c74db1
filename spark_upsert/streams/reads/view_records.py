"""The plain form in which a split of a view travels within a row: JSON of numbers and names.

The reading task brings the plan: a split can name no other table, and nothing that is run. Bytes
from any other source are refused, or mean rows of the very view.

===========  =======================================================================
``version``  1
``plan``     the fingerprint of the plan
``tables``   the paths of its tables that are read live
``steps``    for each ``[before, after, version, time, way]``, with the versions of
             the tables in their order; null: not there yet
``hashes``   the range, as two numbers of hexadecimal digits
``rows``     an estimate of the rows of the tables that moved; so ``bytes``
``queries``  the streaming queries that made what is read
``marker``   the positions before and behind the batch, or null
===========  =======================================================================

Why a step is computed in its way (`Choice`) is told where it is planned, and does not travel.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from spark_upsert.errors import DataError, NewerFormatError
from spark_upsert.model.hash_range import HashRange
from spark_upsert.plan.nodes import Node, Scan
from spark_upsert.store.records import MALFORMED, RECORD_BYTES_MAX, optional, text, whole
from spark_upsert.streams.reads.view_splits import ViewSplit
from spark_upsert.views.relation import At, Step
from spark_upsert.views.steps import Timed
from spark_upsert.views.ways import Choice, Way

VERSION = 1

_FIELDS = frozenset(
    ("version", "plan", "tables", "steps", "hashes", "rows", "bytes", "queries", "marker")
)


def split_to_json(split: ViewSplit, plan: Node) -> bytes:
    """Return the form of a split of a plan."""
    tables = _tables(plan)
    record = {
        "version": VERSION,
        "plan": plan.fingerprint(),
        "tables": tables,
        "steps": [
            [
                [timed.step.before.get(path) for path in tables],
                [timed.step.after.get(path) for path in tables],
                timed.version,
                timed.time_ms,
                timed.choice.way.value,
            ]
            for timed in split.steps
        ],
        "hashes": split.hash_range.to_json(),
        "rows": split.rows,
        "bytes": split.bytes,
        "queries": sorted(split.queries),
        "marker": split.marker,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def split_from_json(data: bytes | None, plan: Node) -> ViewSplit:
    """Return the split of a plan that some bytes say.

    Raises
    ------
    DataError
        They are none, or that of another plan.
    NewerFormatError
        A newer version wrote them.
    """
    if data is None or len(data) > RECORD_BYTES_MAX:
        raise _foreign(data, "nothing" if data is None else f"{len(data)} bytes")
    try:
        record = json.loads(data)
        version = whole(record["version"])
        if version == VERSION:
            return _split(record, plan)
    except MALFORMED as error:
        raise _foreign(data, f"{type(error).__name__}: {error!s:.200}") from error
    raise NewerFormatError.of("the split in a row of a deferred read", version, VERSION)


def _split(record: dict[str, Any], plan: Node) -> ViewSplit:
    if record.keys() != _FIELDS:
        raise ValueError(f"the fields {', '.join(record)}")
    tables = _tables(plan)
    if (record["plan"], record["tables"]) != (plan.fingerprint(), tables):
        raise ValueError(f"the plan {record['plan']!r:.80}, and this is {plan.fingerprint()}")
    return ViewSplit(
        steps=tuple(_timed(each, tables) for each in record["steps"]),
        hash_range=HashRange.from_json(record["hashes"]),
        rows=whole(record["rows"]),
        bytes=whole(record["bytes"]),
        queries=frozenset(map(text, record["queries"])),
        marker=optional(_marker, record["marker"]),
    )


def _timed(record: Any, tables: Sequence[str]) -> Timed:
    before, after, version, time_ms, way = record
    step = Step(_at(before, tables), _at(after, tables))
    return Timed(step, whole(version), whole(time_ms), Choice(Way(way)))


def _at(versions: Any, tables: Sequence[str]) -> At:
    if type(versions) is not list:
        raise ValueError(f"{versions!r:.80} is no list of versions")
    found = zip(tables, versions, strict=True)
    return {path: whole(version) for path, version in found if version is not None}


def _marker(record: Any) -> tuple[str, str]:
    lower, upper = map(text, record)
    return lower, upper


def _tables(plan: Node) -> list[str]:
    scans = (node for node in plan.walk() if isinstance(node, Scan))
    return list(dict.fromkeys(scan.path for scan in scans if scan.version is None))


def _foreign(data: bytes | None, found: str) -> DataError:
    shown = "" if data is None else f", in {data[:40]!r}"
    return DataError(
        "a row holds no split of the view that this query keeps: expected what a read with "
        f"'deferred' gives, found {found}{shown}.",
        hint="drop 'deferred', which only 'keep' sets: the rows of others are written as they are. "
        "If 'keep' did set it, the driver and its executors run different versions of upsertflow.",
    )
