"""Materialized histories: a table storing another table's row versions (docs/adr/0120).

The key is the source's key and the row's opening version, hashed by the source's key. A step puts
complete rows, so a repeated step gives the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from zlib import crc32

import numpy as np
import pyarrow as pa

from spark_upsert.core.arrow_types import unreadable_column_error
from spark_upsert.core.names import find_column, names_of
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import (
    ContentionError,
    OtherTableError,
    UpsertFlowError,
    VersionNotFoundError,
)
from spark_upsert.plan.join_keys import codes, first_occurrences
from spark_upsert.table.changelog.changes import EpochRange, cut_into_ranges
from spark_upsert.table.changelog.history import (
    FROM_VERSION,
    contents_at,
    event_columns,
    event_names,
    read_history,
    require_axis,
    valid_fields,
)
from spark_upsert.table.changelog.read import VALID_NAMES, HistoryOptions, ValidBy
from spark_upsert.table.log.manifest import HISTORY, HISTORY_OF, Commit, Manifest, Transaction
from spark_upsert.table.log.snapshot import Versions
from spark_upsert.table.maintenance import without_columns
from spark_upsert.table.retention.expiry import retry_after_expiry
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.group_commit import commands_of
from spark_upsert.table.write.guards import UnchangedRowsGuard
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet

TOKEN_BITS = 32
"""Token bits in a mark: two table copies are confused with a probability of 1 in 4 billion."""

TRIES_MAX = 16
"""Maximum attempts to commit a step without a concurrent change to its rows."""


def keep_history(
    table: Table,
    kept: Table,
    *,
    columns: Sequence[str] | None = None,
    by: ValidBy = ValidBy.TIME,
    tracked: Sequence[str] = (),
    untracked: Sequence[str] = (),
) -> Commit | None:
    """Update a materialized history by one step; create its table if needed."""
    return retry_after_expiry(
        lambda: _update_history(table, kept, columns, by, tracked, untracked), table.store.url
    )


def _update_history(
    table: Table,
    kept: Table,
    columns: Sequence[str] | None,
    by: ValidBy,
    tracked: Sequence[str],
    untracked: Sequence[str],
) -> Commit | None:
    """Run one step; repeat it if another process was faster."""
    for _ in range(TRIES_MAX):
        look = table.log.refresh()
        source = look.head()
        history_head = kept.log.try_head()
        reached = None if history_head is None else history_head.transactions.get(_writer(source))
        lower = min(max(reached or 0, source.since), source.version)
        spans = schemas_between(look, lower, source)
        fields = _source_schema(source.schema, spans, history_head)
        named = fields.names if columns is None else _select(columns, fields, "columns")
        history_options = HistoryOptions(
            columns=tuple(dict.fromkeys((*source.schema.keys, *named))),
            by=by,
            tracked=_select(tracked, fields, "tracked"),
            untracked=_select(untracked, fields, "untracked"),
        )
        for name in source.schema.unreadable.intersection(history_options.columns):
            raise unreadable_column_error(name, source.schema.columns.field(name).type)
        fields = pa.schema([fields.field(name) for name in history_options.columns])
        head = _ensure_table(kept, source, history_options, fields, is_of_all=columns is None)
        guard = UnchangedRowsGuard(head)
        try:
            return _step(table, kept, source, spans, head, history_options, guard)
        except ContentionError:
            if not guard.has_changed:
                raise
    raise ContentionError(
        f"other keepers changed '{kept.store.url}' {TRIES_MAX} times between a look and a commit.",
        hint="let one process keep the history.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSpan:
    """Versions ``lower <= v < upper`` between two column drops."""

    lower: int
    upper: int
    schema: TableSchema
    """The last version's columns, in the newest version's types."""


def schemas_between(log: Versions, lower: int, source: Manifest) -> list[SchemaSpan]:
    """Divide the versions up to the newest where columns were dropped.

    Each version is read with its own columns: with values for columns dropped later, and without
    columns dropped before, even though older files still hold these. A column dropped by `repair`
    is in no span, because no reader accepts its values.
    """
    spans = [SchemaSpan(lower=lower, upper=source.upper, schema=log.at(lower).schema)]
    for commit in log.commits(lower + 1, source.upper):
        if commit.schema is None:
            continue
        last = spans[-1]
        if set(last.schema.columns.names) <= set(commit.schema.columns.names):
            spans[-1] = replace(last, schema=commit.schema)
        else:
            spans[-1] = replace(last, upper=commit.version)
            spans.append(replace(last, lower=commit.version, schema=commit.schema))
    lost = frozenset().union(*(span.schema.unreadable for span in spans))
    lost -= source.schema.unreadable
    spans = [replace(span, schema=without_columns(span.schema, lost)) for span in spans]
    newest = [*(span.schema for span in spans[1:]), source.schema]
    return [
        replace(span, schema=reduce(TableSchema.widened_to, newest[index:], span.schema))
        for index, span in enumerate(spans)
    ]


def _source_schema(
    newest: TableSchema, spans: Sequence[SchemaSpan], known: Manifest | None
) -> pa.Schema:
    """Return the source columns available to a history, including dropped ones."""
    stored_names = [] if known is None else _source_fields(known.schema.columns)
    fields = {field.name: field for field in newest.columns}
    for field in (*(field for span in spans for field in span.schema.columns), *stored_names):
        fields.setdefault(field.name, field)
    return pa.schema(list(fields.values()))


def _source_fields(columns: pa.Schema) -> list[pa.Field]:
    """Return a materialized history's source columns."""
    return [field for field in columns if field.name not in (*VALID_NAMES, FROM_VERSION)]


def _select(names: Sequence[str], fields: pa.Schema, argument: str) -> tuple[str, ...]:
    field_names = fields.names
    return tuple(
        find_column(name, field_names, role="column") for name in names_of(names, argument)
    )


def _writer(source: Manifest) -> str:
    return f"{HISTORY}{source.table_id}"


def _ensure_table(
    kept: Table,
    source: Manifest,
    wanted: HistoryOptions,
    fields: Iterable[pa.Field],
    *,
    is_of_all: bool,
) -> Manifest:
    """Return the history table's manifest; create the table or add source columns if needed."""
    source_schema = source.schema
    identity = {
        "table": source.table_id,
        "by": wanted.by.value,
        "columns": None if is_of_all else list(wanted.columns),
        "tracked": list(wanted.tracked),
    }
    if wanted.untracked:  # Older histories lack this list.
        identity["untracked"] = list(wanted.untracked)
    expected = json.dumps(identity, separators=(",", ":"))
    columns = [*fields, *valid_fields(source_schema, wanted), pa.field(FROM_VERSION, pa.int64())]
    schema = TableSchema.of(
        pa.schema(columns),
        keys=[*source_schema.keys, FROM_VERSION],
        hash_prefix=len(source_schema.keys),
    )
    head = kept.log.try_head() or kept.ensure(schema, internal={HISTORY_OF: expected})
    recorded = head.properties.get(HISTORY_OF)
    if recorded != expected:
        raise OtherTableError(
            f"the table at '{kept.store.url}' is to keep the history {expected}; found "
            f"{'a table that keeps none' if recorded is None else recorded}.",
            hint="give the same columns and options as at first, or keep this history in a new "
            "path; a source that was made anew has a new history.",
            path=kept.store.url,
        )
    if head.schema.accept(schema.columns, merge=True) != head.schema:
        head = kept.alter(schema)
    return head


def _step(
    table: Table,
    kept: Table,
    source: Manifest,
    spans: Sequence[SchemaSpan],
    head: Manifest,
    wanted: HistoryOptions,
    guard: UnchangedRowsGuard,
) -> Commit | None:
    writer = _writer(source)
    consumer = f"history-{head.table_id}"
    position = _reached_version(kept, head, writer, source)
    if position is not None:
        _require_same_past(table, kept, head, position, source)
    if position is None:
        begin = table.hold_all(consumer).version
        if begin > source.version:
            raise VersionNotFoundError.expired(
                f"version {source.version}", since=begin, newest=table.log.head().version
            )
        [schema] = (span.schema for span in spans if span.lower <= begin < span.upper)
        epoch_ranges = [contents_at(table.log, begin, schema)]
        lower = begin + 1
    else:
        epoch_ranges = []
        lower = _first_version(table, position, source)
        table.keep_held(consumer, lower - 1)
    for span in spans:
        begins = max(lower, span.lower)
        epoch_ranges += cut_into_ranges(table.log, begins, span.upper, span.schema)
    require_axis(epoch_ranges, wanted.by)
    # An epoch without rows is a step, too: otherwise its expiry would look like a loss.
    if position is not None and source.changed <= position:
        table.hold(consumer, source.version)
        return None
    snapshot = Snapshot(kept.store, head)
    staged = stage(snapshot, _commands(table, snapshot, epoch_ranges, wanted), threads=kept.threads)
    reached = Transaction(writer=writer, number=source.version)
    marked = Transaction(writer=_marker(source), number=_mark(source.version, source.token))
    epoch = WriteSet(base=snapshot, staged=(staged,), transactions=(reached, marked))
    try:
        done = kept.commit(epoch, admission=kept.admission(guard=guard))
    except UpsertFlowError:
        kept.discard(epoch.staged)
        raise
    table.hold(consumer, source.version)
    return done


def _reached_version(kept: Table, head: Manifest, writer: str, source: Manifest) -> int | None:
    """Return the source version reached by the history; None before its first step."""
    position = head.transactions.get(writer)
    is_lost = position is None and head.has_forgotten(writer)
    if is_lost or (position is not None and position > source.version):
        raise OtherTableError(
            f"the history at '{kept.store.url}' has reached "
            f"{'a version that was forgotten' if is_lost else f'version {position}'}, and the "
            f"newest of its table is {source.version}.",
            hint="put the table back if it was set back from a copy; else keep its history in a "
            "new path.",
            path=kept.store.url,
        )
    return position


def _marker(source: Manifest) -> str:
    return f"{HISTORY}{source.table_id}:mark"


def _mark(version: int, token: str) -> int:
    """Return a version combined with part of its token; it grows with the version.

    It detects a source restored from a copy and written to since.
    """
    return version << TOKEN_BITS | crc32(token.encode())


def _require_same_past(
    table: Table, kept: Table, head: Manifest, position: int, source: Manifest
) -> None:
    """Refuse a source whose version at the reached position has changed.

    If that version has expired, or the step predates marks, only the table's identity is compared.
    """
    mark = head.transactions.get(_marker(source))
    if mark is None or position < source.since:
        return
    if mark != _mark(position, table.log.commit(position).token):
        raise OtherTableError(
            f"the history at '{kept.store.url}' has reached version {position} of its table; what "
            "is found there is a copy of it with another version of that number.",
            hint="put the table back if it was set back from a copy by mistake; else keep its "
            "history in a new path.",
            path=kept.store.url,
        )


def _first_version(table: Table, position: int, source: Manifest) -> int:
    """Return the first version whose changes a step reads."""
    lower = position + 1
    # Versions without row changes may expire without a loss.
    if lower < source.first_changes and table.log.at(source.since).changed <= position:
        return source.first_changes
    return lower


def _commands(
    table: Table, snapshot: Snapshot, epoch_ranges: Sequence[EpochRange], wanted: HistoryOptions
) -> Iterator[pa.RecordBatch]:
    """Yield commands for the rows opened by a step and the open rows closed by it."""
    if not epoch_ranges:
        return
    shown = snapshot.manifest.schema.columns
    before = partial(_open_rows, snapshot, epoch_ranges[0].schema, wanted)
    for rows in read_history(
        table.store, epoch_ranges, wanted, threads=table.threads, shown=shown, open_rows=before
    ):
        opened = pa.Table.from_batches([rows])
        yield from commands_of(snapshot.manifest, opened, may_lack=True)


def _open_rows(
    snapshot: Snapshot, schema: TableSchema, wanted: HistoryOptions, events: pa.RecordBatch
) -> pa.RecordBatch:
    """Return the open rows for the events' keys, as events."""
    begins, _, is_current = VALID_NAMES
    keys = [events.column(name) for name in schema.keys]
    once = pa.array(first_occurrences(codes(keys)[0]))
    names = event_columns(schema, wanted)
    held = snapshot.having_prefix(
        [key.take(once) for key in keys], [*names, begins, FROM_VERSION, is_current]
    )
    batches = [batch.filter(batch.column(is_current)) for batch in held]
    rows = pa.concat_batches(batches) if batches else None
    if rows is None or not rows.num_rows:
        return events.slice(0, 0)
    columns = [*rows.select([*names, begins, FROM_VERSION]).columns]
    is_put = pa.array(np.ones(rows.num_rows, dtype=np.bool_))
    return pa.RecordBatch.from_arrays([*columns, is_put], names=event_names(names))
