"""Planned reads explained as text, from their splits and the sizes in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from textwrap import indent
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_upsert.core.durations import Fields
from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.schema import DIFF, TableSchema
from spark_upsert.merge import Seeded
from spark_upsert.plan.nodes import Filter, Group, Join, Node, Project, Reverse, Scan, Unnest
from spark_upsert.store.open import is_remote
from spark_upsert.streams.reads.splits import (
    ChangesSplit,
    QuarantineSplit,
    RowsSplit,
    Split,
    distinct_slices,
    slices_read,
)
from spark_upsert.table.changelog.changes import EpochRange, RangeBoundary
from spark_upsert.table.changelog.read import Deduplication
from spark_upsert.table.run.remote import REMOTE_RUNS, REQUEST_BYTES, Access, estimate_cost
from spark_upsert.table.state.lookup import HASHES_PER_BLOCK, is_sparse

if TYPE_CHECKING:
    from spark_upsert.options.inputs import ReadPlan
    from spark_upsert.options.read import QueryOptions, ReadOptions
    from spark_upsert.plan.aggregates import Aggregate
    from spark_upsert.streams.reads.views import ViewSplit
    from spark_upsert.table.log.manifest import Slice
    from spark_upsert.views.view import View

SHOWN = 20
"""Maximum items in a list; the others are counted."""

_LOGGER = logging.getLogger(__name__)

_CUTS: Mapping[RangeBoundary, str] = {
    RangeBoundary.START: "the first epoch with rows that is asked for",
    RangeBoundary.OVERWRITE: "an overwrite, which compares the rows before it with those behind it",
    RangeBoundary.AFTER_OVERWRITE: "the epoch before it is an overwrite",
    RangeBoundary.LATE_ROWS: "an epoch with late rows, which count against the state before it",
    RangeBoundary.BEGINNING: "the whole contents with which the history begins",
    RangeBoundary.NET: "net changes over an overwrite or late rows compare what was with what is",
}

_MODES: Mapping[Deduplication, str] = {
    Deduplication.NONE: "every change, those included that leave all values as they were",
    Deduplication.DROP_CARRYOVERS: "updates that leave all values as they were are left out",
    Deduplication.NET_CHANGES: "at most one change per key, at the last of its epochs",
}

# -- the layout -----------------------------------------------------------------------------


def format_count(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun in singular or plural."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def format_field(name: str, *texts: str) -> list[str]:
    """Return a field's lines; the first one contains its name."""
    return [f"  {name if not at else '':<10}{text}" for at, text in enumerate(texts)]


def format_columns(names: Sequence[str]) -> list[str]:
    """Return the field for the read columns."""
    return format_field("columns", ", ".join(names) or "none: rows are only counted")


def format_omitted(count: int, what: str = "") -> list[str]:
    """Return the line counting the omitted items; empty if none are."""
    return [f"  and {count - SHOWN:,} more{what}"] if count > SHOWN else []


# -- a read of a table ----------------------------------------------------------------------


def explain(splits: Sequence[Split], options: ReadOptions, columns: Sequence[str]) -> str:
    """Describe a planned read as text."""
    rows = [split for split in splits if isinstance(split, RowsSplit)]
    errors = [split for split in splits if isinstance(split, QuarantineSplit)]
    changes = [split for split in splits if isinstance(split, ChangesSplit)]
    lines: list[str] = []
    if rows:
        as_inserts = ", shown as insertions" if options.change_feed else ""
        lines += _contents("rows", rows, as_inserts, columns, options)
    if errors:
        lines += _contents("error entries", errors, "", columns, options)
    if changes:
        lines += _changes(changes, options, columns)
    if not lines:
        return "nothing to read: no epoch that is asked for has rows"
    shown = [f"  {split.hash_range} {_within(split)}" for split in splits[:SHOWN]]
    return "\n".join(
        [*lines, format_count(len(splits), "split"), *shown, *format_omitted(len(splits))]
    )


def log_read(splits: Sequence[Split], options: ReadOptions, columns: Sequence[str]) -> None:
    """Log a planned read: one line at info, `explain` at debug."""
    if _LOGGER.isEnabledFor(logging.INFO):
        contents = [split for split in splits if not isinstance(split, ChangesSplit)]
        stretches = next((s.stretches for s in splits if isinstance(s, ChangesSplit)), ())
        files, rows, size = _amount(
            distinct_slices(file for split in splits for file in slices_read(split))
        )
        fields = Fields(
            path=options.path,
            snapshot=contents[0].manifest.version if contents else None,
            lower=stretches[0].before.version + 1 if stretches else None,
            upper=max(stretches[-1].times_ms) + 1 if stretches else None,
            stretches=len(stretches) or None,
            splits=len(splits),
            files=files,
            rows=rows,
            bytes=size,
        )
        _LOGGER.info("read planned: %s", fields)
    if _LOGGER.isEnabledFor(logging.DEBUG):
        _LOGGER.debug("read planned:\n%s", explain(splits, options, columns))


def _contents(
    what: str,
    splits: Sequence[RowsSplit | QuarantineSplit],
    note: str,
    columns: Sequence[str],
    options: ReadOptions,
) -> list[str]:
    manifest = splits[0].manifest
    slices = distinct_slices(split.manifest.slices for split in splits)
    hashes = HashRange(splits[0].hash_range.first, splits[-1].hash_range.end)
    runs = len({slice_.epochs for slice_ in slices})
    how = "read through" if runs < 2 else "entries of one key are compared, the winner is read"
    return [
        f"{what} of version {manifest.version}{note}",
        *format_columns(columns),
        *format_field("files", _size(slices, hashes)),
        *format_field("runs", f"{runs}: {how}"),
        *_fetched(options, slices, manifest.schema, Access([*columns, DIFF], hash_range=hashes)),
    ]


def _fetched(
    options: ReadOptions,
    slices: Sequence[Slice],
    schema: TableSchema,
    access: Access,
    probes: Callable[[Slice], int] | None = None,
) -> list[str]:
    """Return the field for what a read fetches of a table in a bucket, without local copies."""
    if not is_remote(options.path):
        return []
    copied = ranged = copied_bytes = cost = 0
    # A run stores the marks that it needs, mostly none.
    stored = pa.schema([field for field in schema.run if field.name not in schema.run_marks])
    for slice_ in slices:
        count = None if probes is None else probes(slice_)
        file_cost = estimate_cost(slice_.file, stored, access, count)
        if REMOTE_RUNS.is_copied(slice_.file, file_cost):
            copied, copied_bytes = copied + 1, copied_bytes + slice_.file.bytes
        else:
            ranged, cost = ranged + 1, cost + file_cost
    unit = f"bytes and {REQUEST_BYTES:,} per request"
    return format_field(
        "fetched",
        f"{format_count(copied, 'file')} copied, {copied_bytes:,} bytes; "
        f"of {format_count(ranged, 'file')} only what is read, {cost:,} {unit}",
    )


def _changes(
    splits: Sequence[ChangesSplit], options: ReadOptions, columns: Sequence[str]
) -> list[str]:
    stretches = list(_stretches(splits))
    versions = _versions(stretches[0].before.version + 1, max(stretches[-1].times_ms))
    history, mode = splits[0].history, options.deduplication
    if history is not None:
        fields = format_field("valid", f"by {history.by.value}")
    else:
        fields = format_field("mode", f"{mode.value}: {_MODES[mode]}") + format_field(
            "shown", _shown(options)
        )
    noun = "changes" if history is None else "history"
    return [
        f"{noun} of {versions}, in {format_count(len(stretches), 'stretch', 'stretches')}",
        *format_columns(columns),
        *fields,
        *(
            line
            for number, stretch in enumerate(stretches[:SHOWN], 1)
            for line in _stretch(number, stretch, options)
        ),
        *format_omitted(len(stretches)),
    ]


def _shown(options: ReadOptions) -> str:
    if not options.change_feed:
        deletes = "left out" if options.ignore_deletes else "an error"
        return f"the new values alone; a delete is {deletes}"
    if options.compute_updates:
        return "an update as update_preimage and update_postimage"
    return "an update as delete and insert"


def _stretches(splits: Sequence[ChangesSplit]) -> Iterator[EpochRange]:
    """Yield a read's epoch ranges over all splits; in an exact order each step has its own."""
    for _, step in groupby(splits, lambda split: split.stretches[0].before.version):
        for pieces in zip(*(split.stretches for split in step), strict=True):
            slices = distinct_slices(piece.before.slices for piece in pieces)
            yield replace(pieces[0], before=replace(pieces[0].before, slices=slices))


def _stretch(number: int, stretch: EpochRange, options: ReadOptions) -> list[str]:
    before = stretch.before
    is_step = number > 1 and stretch.cut is RangeBoundary.START

    def probes(slice_: Slice) -> int:
        return sum(commands.rows_within(slice_.occupied) for commands in stretch.after)

    because = "an exact order takes epoch by epoch" if is_step else _CUTS[stretch.cut]
    return [
        f"stretch {number}: {_versions(before.version + 1, max(stretch.times_ms))}",
        *format_field("because", because),
        *format_field("before", f"version {before.version}: {_size(before.slices)}"),
        *format_field("after" if stretch.is_comparison else "commands", _size(stretch.after)),
        *format_field("look-ups", *_look_ups(stretch)),
        *_fetched(
            options,
            before.slices,
            stretch.schema,
            Access(),
            None if stretch.is_comparison else probes,
        ),
    ]


def _look_ups(stretch: EpochRange) -> Iterator[str]:
    """Yield how the state before an epoch range is searched for its commands' keys.

    Uses the tasks' rule (`lookup.is_sparse`) with the command count instead of the key count.
    """
    if stretch.is_comparison:
        yield "none: both are read through and compared"
        return
    if not stretch.before.slices:
        yield "none: there is nothing before"
    slices_by_side: dict[bool, list[Slice]] = {False: [], True: []}
    for slice_ in stretch.before.slices:
        commands = sum(after.rows_within(slice_.occupied) for after in stretch.after)
        slices_by_side[is_sparse(commands, slice_.rows_within(slice_.occupied))].append(slice_)
    block = f"for {HASHES_PER_BLOCK} entries, a block of hashes, so that"
    if slices_by_side[False]:
        dense = _size(slices_by_side[False])
        yield f"dense in {dense}: a command or more {block} all blocks are read"
    if slices_by_side[True]:
        few = f"less than a command {block} only blocks are read that a search meets"
        yield f"sparse in {_size(slices_by_side[True])}: {few}"


def _within(split: Split) -> str:
    read = f"reads {_size(distinct_slices(slices_read(split)), split.hash_range)}"
    if not isinstance(split, ChangesSplit):
        return read
    searched = (stretch.before.slices for stretch in split.stretches if not stretch.is_comparison)
    return f"{read}; searches {_size(distinct_slices(searched), split.hash_range)}"


def _amount(slices: Sequence[Slice], hashes: HashRange = ALL_HASHES) -> tuple[int, int, int]:
    """Return file, entry and byte counts for slices in a range; estimates where a file is cut."""
    there = [slice_ for slice_ in slices if slice_.overlaps(hashes)]
    entries = sum(slice_.rows_within(hashes) for slice_ in there)
    size = sum(slice_.bytes_within(hashes) for slice_ in there)
    return len({slice_.file.path for slice_ in there}), entries, size


def _size(slices: Sequence[Slice], hashes: HashRange = ALL_HASHES) -> str:
    files, entries, size = _amount(slices, hashes)
    if not files:
        return "nothing"
    return f"{format_count(files, 'file')}, {format_count(entries, 'entry', 'entries')}, {size:,} bytes"


def _versions(first: int, last: int) -> str:
    return f"version {last}" if first == last else f"versions {first} to {last}"


# -- a merge of several inputs ----------------------------------------------------------------


def explain_merge(plan: ReadPlan) -> str:
    """Describe how a read merges its inputs; an empty text for a single unnamed input.

    `QueryOptions.order` decides, and is described: a read without an exact order is live.
    """
    if plan.is_unnamed:
        return ""
    query, count = plan.query, f"{len(plan.inputs):,}"
    if plan.discovery is not None and not plan.discovery.named:
        discovery = f"found by '{plan.discovery.pattern}' below the path"
        count = f"{count}, {discovery}" if plan.inputs else discovery
    tasks = f"at most {query.slots}, packed by bytes"
    lines = [
        f"merge of several inputs: {query.merge.value}",
        *format_field("inputs", count),
        *format_field("tasks", tasks if query.order is None else "one, in an exact order"),
        *format_field("live", _live(query)),
    ]
    return "\n".join(lines)


def _live(query: QueryOptions) -> str:
    """Return whether rows are emitted as they arrive, and why."""
    match query.order:
        case None:
            return "yes: rows come as they are ready, through bounded channels"
        case Seeded(state=seed):
            return f"no: the seed {seed} gives it an exact order"
        case _:
            return f"no: its mode is {query.merge.value}, which has an exact order"


def log_merge(plan: ReadPlan) -> None:
    """Log how a read merges its inputs."""
    if not plan.is_unnamed:
        query, inputs = plan.query, len(plan.inputs) or None
        fields = Fields(inputs=inputs, merge=query.merge.value, live=_live(query))
        _LOGGER.info("merge planned: %s", fields)


# -- a read of a view -------------------------------------------------------------------------


def explain_view(view: View, splits: Sequence[ViewSplit]) -> str:
    """Describe the read of a view's splits as text."""
    lines = [
        f"view {view.plan.fingerprint()}",
        *format_field("key", ", ".join(view.relation.key or ())),
        *format_field("follows", *(view.paths or ("nothing: all tables are pinned",))),
        indent("\n".join(plan_lines(view.plan)), "  "),
        format_count(len(splits), "task"),
        *(f"  {split.steps_text()}: {split.rows:,} rows" for split in splits[:SHOWN]),
        *format_omitted(len(splits)),
    ]
    return "\n".join(lines)


def plan_lines(node: Node) -> Iterator[str]:
    """Yield a line for each plan node, followed by its indented inputs."""
    yield _node(node)
    for child in node.inputs:
        yield from (f"  {line}" for line in plan_lines(child))


def _node(node: Node) -> str:
    match node:
        case Scan():
            where = "live" if node.version is None else f"at version {node.version}"
            return f"scan {node.path}, {where}, key {', '.join(node.key)}"
        case Filter():
            return f"filter {node.where}"
        case Project():
            named = (name if name == text else f"{text} AS {name}" for name, text in node.columns)
            return f"select {', '.join(named)}"
        case Unnest():
            return f"unnest {node.column}"
        case Join():
            on = " and ".join(f"{left} = {right}" for left, right in node.on)
            method = "by scans" if node.reverse is Reverse.SCAN else "by indexes"
            return (
                f"{node.how.value} join on {on}; partners of changes are found by key or {method}"
            )
        case Group():
            aggregates = ", ".join(
                f"{aggregate.name} = {_aggregate(aggregate)}" for aggregate in node.aggregates
            )
            return f"group by {', '.join(node.keys) or 'nothing'}: {aggregates or 'nothing'}"
        case _:
            return node.kind


def _aggregate(aggregate: Aggregate) -> str:
    scale = "" if aggregate.scale is None else f", scale {aggregate.scale}"
    return f"{aggregate.kind.value}({aggregate.column or '*'}{scale})"
