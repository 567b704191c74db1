"""A plan bound to its tables (`View`), its steps, and each step's strategy.

Look-ups and the comparison of two snapshots give the same pairs, so the choice affects only time
(docs/adr/0035).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_upsert.core.durations import Fields
from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Positions
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import PlanError, about
from spark_upsert.options.read import OnError
from spark_upsert.plan.json import read_text
from spark_upsert.plan.nodes import (
    Filter,
    Group,
    Join,
    Node,
    Project,
    ProjectedColumn,
    Scan,
    Unnest,
)
from spark_upsert.store.open import open_store
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import (
    Commit,
    KeptPosition,
    Manifest,
    TableVersion,
    VersionsByInput,
)
from spark_upsert.table.retention.expiry import LEASE_MS
from spark_upsert.table.retention.leases import Lease, readable_leases
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.views.group_rows import PLAN, grouping_of
from spark_upsert.views.grouping import DIGITS, Grouping, Summand
from spark_upsert.views.intervals import Pairs
from spark_upsert.views.join import make_join
from spark_upsert.views.materialized import MaterializedBase
from spark_upsert.views.relation import At, Relation, Step, timed_changes_of
from spark_upsert.views.row_errors import clear_failures, require_values
from spark_upsert.views.rowwise import FilterRelation, ProjectRelation, UnnestRelation, quote_column
from spark_upsert.views.scan import BaseTable, OpenBase, ScanRelation, TableBase

_LOGGER = logging.getLogger(__name__)


def open_base(scan: Scan, table: Table) -> BaseTable:
    """Return a table as a scan reads it."""
    grouping = grouping_of(table.log.head().properties)
    return TableBase(scan, table) if grouping is None else MaterializedBase(scan, table, grouping)


def make_scan(path: str, table: Table) -> Scan:
    """Return a table's scan, with its current columns."""
    head = table.log.head()
    grouping = grouping_of(head.properties)
    if grouping is None:
        return Scan.of(path, head.schema.columns, head.schema.keys)
    if not grouping.keys:
        raise PlanError(
            f"the table at '{path}' keeps one group of all rows, which has no key.",
            hint="read it as a table, or group by a column that is always the same.",
        )
    return Scan.of(path, grouping.result_schema, grouping.keys)


def list_base_tables(path: str, table: Table) -> frozenset[str]:
    """Return a table's base tables: itself, or those of its materialized view."""
    plan = table.log.head().properties.get(PLAN)
    return frozenset([path]) if plan is None else frozenset(_paths(read_text(plan)))


def _paths(record: Any) -> Iterator[str]:
    if isinstance(record, dict):
        if record.get("node") == "scan":
            yield record["path"]
        for item in record.values():
            yield from _paths(item)
    elif isinstance(record, list):
        for item in record:
            yield from _paths(item)


def bind(plan: Node, open_base: OpenBase) -> Relation:
    """Return a plan's relation, for a view: its rows must have a key.

    Raises
    ------
    PlanError
        The plan cannot be run unchanged; the message names the node and the column.
    """
    relation = bind_below_group(plan, open_base)
    _require_key(relation)
    return relation


def bind_group(plan: Group, open_base: OpenBase) -> tuple[Relation, Grouping]:
    """Return the relation of a plan's input rows, and its grouping."""
    relation = bind_below_group(plan.input, open_base, carries=True)
    shown = pa.schema(
        [relation.schema.field(name) for name in _output_columns(plan.input, relation)]
    )
    with about("node", plan.title):
        grouping = Grouping(shown, plan.keys, plan.aggregates)
    return _drop_unsummable(plan, relation, grouping), grouping


def _output_columns(plan: Node, relation: Relation) -> list[str]:
    """Return a plan's columns, without additionally carried ones."""
    chosen = next((node for node in _chain(plan) if isinstance(node, Project)), None)
    return (
        list(relation.schema.names)
        if chosen is None
        else [column.name for column in chosen.columns]
    )


def _chain(plan: Node) -> Iterator[Node]:
    """Yield the filters and projections at a plan's end, the last first."""
    while isinstance(plan, Filter | Project):
        yield plan
        plan = plan.input


def _drop_unsummable(plan: Group, relation: Relation, grouping: Grouping) -> Relation:
    """Return the rows; floats with too many digits for their sum are no values."""
    like = {
        summed.column: Summand(
            relation.schema.field(summed.column).type, summed.column, summed.scale, DIGITS
        )
        for summed in sorted(grouping.sums, key=lambda each: each.scale or 0)
        if summed.scale is not None
    }
    if not like:
        return relation
    columns = tuple(ProjectedColumn(name, quote_column(name)) for name in relation.schema.names)
    return ProjectRelation(Project(input=plan.input, columns=columns), relation, like)


def bind_below_group(plan: Node, open_base: OpenBase, *, carries: bool = False) -> Relation:
    """Return a plan's relation for sums: its rows need no key."""
    scans: dict[Scan, ScanRelation] = {}
    chain = set(map(id, _chain(plan))) if carries else set()

    def relation_of(node: Node) -> Relation:
        inputs = [relation_of(child) for child in node.inputs]
        with about("node", node.title):
            if not isinstance(node, Project | Filter | Group):
                for child in inputs:
                    _require_key(child)
            match node:
                case Scan():
                    if node not in scans:
                        scans[node] = ScanRelation(node, open_base(node))
                    return scans[node]
                case Filter():
                    return FilterRelation(node, *inputs)
                case Project():
                    return ProjectRelation(node, inputs[0], carries=id(node) in chain)
                case Unnest():
                    return UnnestRelation(node, *inputs)
                case Join() if not node.shows_both_keys:
                    return make_join(node, *inputs)
                case Group():
                    raise PlanError(
                        "'group' gives no rows with changes.",
                        hint="a group must be kept first: .keep(path).",
                    )
                case _:
                    raise PlanError(
                        f"'{node.kind}' is a node for tasks: it gives no rows with changes.",
                        hint="build the plan of a view by its methods, and give that text.",
                    )

    return relation_of(plan)


def _require_key(relation: Relation) -> None:
    """Raise unless rows have an identity."""
    if relation.key is not None:
        return
    raise PlanError(
        f"the projection drops the key '{relation.dropped}'.",
        hint="keep it, or group.",
        column=relation.dropped,
    )


STEP_ROWS_MIN = 10_000
"""A step with fewer changed rows always uses look-ups: the cost is small in either case,
and the tables' sizes need not be read.
"""

PIECE_ROWS = 1 << 17
"""Changed rows processed per piece, as far as hashes separate them."""


class RefreshStrategy(Enum):
    """Strategy for computing a step's changes."""

    LOOK_UPS = "look-ups"
    SNAPSHOTS = "both snapshots"


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy, and its reason."""

    strategy: RefreshStrategy = RefreshStrategy.LOOK_UPS
    share: float = 0.0
    """Share of possibly changed rows; 0 if it was not computed."""
    worth_scanning: float = 1.0
    """The share from which on snapshots are compared."""

    def __str__(self) -> str:
        return (
            f"{self.share:.0%} of the rows may have changed, and both snapshots are compared from "
            f"{self.worth_scanning:.0%} on"
        )


LOOK_UPS = Choice()


def choose_strategy(
    relation: Relation, changed: Mapping[str, int], live: Mapping[str, int]
) -> Choice:
    """Return a step's strategy.

    The share of possibly changed rows is ``1 - (1 - changed / rows) * ...`` over all tables, from
    the epochs' counters. Above `Relation.worth_scanning`, snapshots cost less.
    """
    same = 1.0
    for path, rows in changed.items():
        same *= 1 - min(1.0, rows / max(1, live[path]))
    share = 1 - same
    strategy = (
        RefreshStrategy.SNAPSHOTS if share >= relation.worth_scanning else RefreshStrategy.LOOK_UPS
    )
    return Choice(strategy, share, relation.worth_scanning)


def pairs_by_piece(
    relation: Relation,
    step: Step,
    way: RefreshStrategy,
    *,
    rows: int,
    hash_range: HashRange = ALL_HASHES,
) -> Iterator[Pairs]:
    """Yield a step's changes in a hash range (`timed_pairs_by_piece`)."""
    pieces = timed_pairs_by_piece(relation, step, way, rows=rows, hash_range=hash_range)
    return (pairs for pairs, _ in pieces)


def timed_pairs_by_piece(
    relation: Relation,
    step: Step,
    way: RefreshStrategy,
    *,
    rows: int,
    hash_range: HashRange = ALL_HASHES,
) -> Iterator[tuple[Pairs, Positions]]:
    """Yield a step's changes in a hash range, in pieces fitting in memory."""
    if not step.before:
        for piece in relation.driving.chunks(step.after, hash_range):
            yield _at_the_end(step, Pairs.of_inserts(relation.scan(step.after, piece)))
    elif way is RefreshStrategy.SNAPSHOTS:
        for pairs in _compare_snapshots(relation, step, hash_range):
            yield _at_the_end(step, pairs)
    else:
        for piece in hash_range.cut(1 + rows // PIECE_ROWS):
            yield from timed_changes_of(relation, restrict_step(relation, step, piece))


def _at_the_end(step: Step, pairs: Pairs) -> tuple[Pairs, Positions]:
    return pairs, np.full(len(pairs), step.last_time)


def restrict_step(relation: Relation, step: Step, hash_range: HashRange) -> Step:
    """Return a step's part in a hash range; parts covering all hashes make up the step."""
    moved = [path for path, version in step.after.items() if step.before.get(path) != version]
    if len(moved) == 1 and relation.depends_on_one_row(moved[0]):
        return replace(step, hash_range=hash_range)
    return replace(step, within=hash_range)


def _compare_snapshots(relation: Relation, step: Step, hash_range: HashRange) -> Iterator[Pairs]:
    """Yield the differences between the rows before and after a step."""
    chunks = [relation.driving.chunks(at, hash_range) for at in (step.before, step.after)]
    for piece in max(chunks, key=len):
        old, new = (relation.scan(at, piece) for at in (step.before, step.after))
        assert relation.key is not None
        yield Pairs.from_rows(old, new, relation.key).drop_equal()


class TableEpoch(NamedTuple):
    """A table's epoch, in step order."""

    time_ms: int
    table_index: int
    """The table's position among those in the plan."""
    version: int
    path: str


class TimedStep(NamedTuple):
    """A step, with its rows' metadata."""

    step: Step
    version: int
    """The sum of its end versions, which grows with every step."""
    time_ms: int
    """The greatest commit time there, which never falls."""
    choice: Choice = LOOK_UPS
    """Strategy for computing the step's changes."""


class StepRange(NamedTuple):
    """Steps computed in one pass, with a time for each (`spans`)."""

    step: Step
    """From where the first begins to where the last ends."""
    steps: tuple[TimedStep, ...]

    @property
    def strategy(self) -> RefreshStrategy:
        """How it is computed."""
        return self.steps[0].choice.strategy


def combine_steps(found: Sequence[TimedStep]) -> list[StepRange]:
    """Return steps in few epoch ranges: consecutive steps with look-ups form one."""
    return [
        stretch
        for is_looked_up, part in groupby(found, key=_is_looked_up)
        for stretch in ([_combine(tuple(part))] if is_looked_up else map(single_step_range, part))
    ]


def _is_looked_up(timed: TimedStep) -> bool:
    return bool(timed.step.before) and timed.choice.strategy is RefreshStrategy.LOOK_UPS


def single_step_range(timed: TimedStep) -> StepRange:
    """Return a step as a separate epoch range."""
    return StepRange(timed.step, (timed,))


def _combine(found: tuple[TimedStep, ...]) -> StepRange:
    if len(found) == 1:
        return single_step_range(found[0])
    epochs = [
        (path, version)
        for timed in found
        for path, version in timed.step.after.items()
        if timed.step.before[path] != version
    ]
    assert len(epochs) == len(found), "each of several steps is of one epoch"
    step = Step(found[0].step.before, found[-1].step.after, tuple(epochs))
    return StepRange(step, found)


def sort_epochs(moved: Iterable[TableEpoch]) -> list[TableEpoch]:
    """Return epochs in the order in which steps take them.

    The order is commit time, then the table's position in the plan, then version: a function of
    positions and logs, hence a replay takes the same steps.
    """
    return sorted(moved)


def steps(before: At, moved: Sequence[TableEpoch], times_ms: Mapping[str, int]) -> list[TimedStep]:
    """Return the steps from a position on, one for each epoch."""
    planned = []
    at, time_ms = dict(before), max(times_ms.values(), default=0)
    for moved_table in moved:
        start, at = at, {**at, moved_table.path: moved_table.version}
        time_ms = max(time_ms, moved_table.time_ms)
        planned.append(TimedStep(Step(start, at), sum(at.values()), time_ms))
    return planned


def net_step(
    before: At, moved: Sequence[TableEpoch], times_ms: Mapping[str, int]
) -> list[TimedStep]:
    """Return the single step over all epochs; an empty list if nothing changed."""
    every = steps(before, moved, times_ms)
    if not every:
        return []
    last = every[-1]
    return [TimedStep(Step(before, last.step.after), last.version, last.time_ms)]


@dataclass(frozen=True, slots=True)
class MovedBy:
    """A table's epoch, with its size."""

    moved: TableEpoch
    rows: int
    bytes: int


class View:
    """A plan, bound to its tables.

    Parameters
    ----------
    plan : Node
    storage : mapping of str to str, optional
        Access settings for the tables' object store.
    """

    def __init__(self, plan: Node, storage: Mapping[str, str] | None = None) -> None:
        self.plan = plan
        self._storage = storage
        self.tables: dict[str, Table] = {}
        """By plan path."""
        self._schemas: dict[str, TableSchema] = {}
        """The schema of each table to which the plan is bound."""
        self.grouping: Grouping | None = None
        """The grouping for `relation`'s rows, if the plan groups them."""
        self.relation: Relation
        if isinstance(plan, Group):
            self.relation, self.grouping = bind_group(plan, self._open)
        else:
            self.relation = bind(plan, self._open)
        self.paths = tuple(dict.fromkeys(self.relation.paths))
        """Paths of the live tables, in plan order."""

    def _open(self, scan: Scan) -> BaseTable:
        if scan.path not in self.tables:
            self.tables[scan.path] = Table(open_store(scan.path, self._storage))
        log = self.log(scan.path)
        with about("table", scan.path), log.pin_snapshot():
            self._schemas[scan.path] = log.head().schema
            return open_base(scan, self.tables[scan.path])

    def rebind_if_altered(self) -> View:
        """Return the view for reads at its newest position, bound again if a table was altered.

        A position can be newer than the schemas to which the plan is bound.
        """
        return self if self.is_bound() else View(self.plan, self._storage)

    def is_bound(self) -> bool:
        """Return whether all tables have the columns to which the plan was bound."""
        for path in self.tables:
            self.log(path).head()
        return self._seen_schemas() == self._schemas

    def _seen_schemas(self) -> dict[str, TableSchema]:
        """Return each table's columns in the newest version seen."""
        heads = {path: table.log.cached_head for path, table in self.tables.items()}
        return {path: head.schema for path, head in heads.items() if head is not None}

    def pins(self) -> dict[str, int]:
        """Return each table's oldest fixed version, if it has one."""
        # From the newest to the oldest, which stays.
        return dict(sorted(self._pinned_scans(), reverse=True))

    def _pinned_scans(self) -> set[tuple[str, int]]:
        """Return each table with each fixed version read by the plan."""
        return {
            (node.path, node.version)
            for node in self.plan.walk()
            if isinstance(node, Scan) and node.version is not None
        }

    def hold(self, consumer: str, at: At, *, ttl_ms: int = LEASE_MS) -> dict[str, Lease]:
        """Take or renew a lease on each table, at the oldest version read at a position."""
        return {
            path: self.tables[path].hold(consumer, version, ttl_ms=ttl_ms)
            for path, version in self._held_at(at).items()
        }

    def keep_held(self, consumer: str, at: At) -> None:
        """Renew the leases at an already held position; they are written only if necessary."""
        for path, version in self._held_at(at).items():
            self.tables[path].keep_held(consumer, version)

    def clamp_to_leases(self, consumer: str, at: At) -> At:
        """Return a position, or an older one where the consumer has a readable lease."""
        return {
            path: min([version, *self._lease_versions(path, consumer)])
            for path, version in at.items()
        }

    def _lease_versions(self, path: str, consumer: str) -> list[int]:
        table = self.tables[path]
        now_ms, since = table.log.now_ms(), table.log.head().since
        consumer_leases = [
            readable_lease
            for readable_lease in readable_leases(table.store)
            if readable_lease.consumer == consumer
        ]
        return [
            lease.version
            for lease in consumer_leases
            if lease.is_live(now_ms) and lease.version >= since
        ]

    def _held_at(self, at: At) -> At:
        """Return each table's oldest version read at a position."""
        pins = {path: min(pin, at.get(path, pin)) for path, pin in self.pins().items()}
        return {**at, **pins}

    @contextmanager
    def use_cached_heads(self) -> Iterator[None]:
        """Use the newest versions seen as the newest within the context (`Log.pin_snapshot`)."""
        with ExitStack() as stack:
            for table in self.tables.values():
                stack.enter_context(table.log.pin_snapshot())
            yield

    def driving(self, at: At) -> Manifest | None:
        """Return the plan's leftmost table (`Driving`) at a position; None before its first
        version.
        """
        node = self.plan
        while node.inputs:
            node = node.inputs[0]
        assert isinstance(node, Scan)
        version = at.get(node.path) if node.version is None else node.version
        return None if version is None else self.log(node.path).at(version)

    def report_failures(self, at: At, on_error: OnError) -> None:
        """Raise or log if a formula has no value for a read row (`OnError`)."""
        failed = sum(formula.failed for formula in self.relation.formulas)
        if not failed:
            return
        if on_error is OnError.NULL:
            _LOGGER.warning("formulas without a value: %s", Fields(plan=self.title, rows=failed))
        else:
            newest = self.newest()
            positions = [at, newest] if self.is_bound() else [at]
            require_values(self.relation.formulas, positions)
        clear_failures(self.relation.formulas)

    @property
    def urls(self) -> str:
        """The tables read live, for quoting in an error."""
        return "', '".join(self.paths)

    @property
    def title(self) -> str:
        """The view's name in logs."""
        return self.plan.title

    # -- positions -------------------------------------------------------------------

    def newest(self) -> At:
        """Return the newest position."""
        heads = {path: self._head(path) for path in self.paths}
        return {path: max(head.changed, head.since) for path, head in heads.items()}

    def table_versions(self, at: At) -> dict[str, TableVersion]:
        """Return the table versions to record for a position (`require_same_tables`)."""
        return {path: self.log(path).version_ref(version) for path, version in at.items()}

    def pinned_versions(self) -> dict[str, TableVersion]:
        """Return the table versions to record for fixed versions.

        By ``path@version`` (`require_same_tables`).
        """
        return {
            f"{path}@{version}": self.log(path).version_ref(version)
            for path, version in sorted(self._pinned_scans())
        }

    def require_same_tables(
        self, at: VersionsByInput, pinned: VersionsByInput, who: str, hint: str
    ) -> None:
        """Raise unless these are exactly the tables named in a checkpoint, or another record."""
        remembered = [*at.items(), *((name.rpartition("@")[0], pinned[name]) for name in pinned)]
        for path, version_ref in remembered:
            self.log(path).require(version_ref, who, hint=hint)

    def materialized_position(self, at: At) -> KeptPosition:
        """Return a position in a materialized table's format; the first snapshot is complete."""
        return KeptPosition(at=self.table_versions(at), pinned=self.pinned_versions())

    def require_materialized_from(self, position: KeptPosition) -> None:
        """Raise unless a table was materialized from the existing tables (`require_same_tables`)."""
        self.require_same_tables(
            position.at,
            position.pinned,
            "the table that keeps this view",
            "if the table was replaced by mistake, put it back. If it was made anew, or set back, "
            "keep the view in a new path: what was added from before cannot be taken back.",
        )

    def at_timestamp(self, time_ms: int) -> At:
        """Return the position that includes all commits up to a time."""
        return {
            path: last_epoch(self.log(path), self.log(path).at_timestamp(time_ms).version)
            for path in self.paths
        }

    def log(self, path: str) -> Log:
        """Return a table's log."""
        return self.tables[path].log

    def _head(self, path: str) -> Manifest:
        with about("input", path):
            return self.log(path).head()

    def time_ms(self, path: str, version: int) -> int:
        """Return the commit time of a table's version."""
        log = self.log(path)
        return log.head().time_ms(version, log.commit(version).timestamp_ms)

    def times_ms(self, at: At) -> dict[str, int]:
        """Return the commit times of a position's versions."""
        return {path: self.time_ms(path, version) for path, version in at.items()}

    def iter_epochs(self, before: At, after: At) -> Iterator[MovedBy]:
        """Yield the epochs between two positions, in step order."""
        moves = [
            self._iter_table_epochs(index, path, before[path], after[path])
            for index, path in enumerate(self.paths)
        ]
        # Commit times of one table never fall, so that each way is in order.
        return heapq.merge(*moves, key=lambda each: each.moved)

    def choose_strategy(self, step: Step, moved: Iterable[MovedBy]) -> Choice:
        """Return the strategy for a step with the given epochs."""
        changed: dict[str, int] = {}
        for moved_table in moved:
            changed[moved_table.moved.path] = (
                changed.get(moved_table.moved.path, 0) + moved_table.rows
            )
        if sum(changed.values()) < STEP_ROWS_MIN:
            return LOOK_UPS
        live = {path: self.log(path).at(step.after[path]).live_rows for path in changed}
        return choose_strategy(self.relation, changed, live)

    def _iter_table_epochs(
        self, place: int, path: str, before: int, after: int
    ) -> Iterator[MovedBy]:
        log = self.log(path)
        if before < after:
            log.require_changes(before + 1)
        for commit in log.commits(before + 1, after + 1):
            if commit.is_epoch:
                moved = TableEpoch(
                    log.head().time_ms(commit.version, commit.timestamp_ms),
                    place,
                    commit.version,
                    path,
                )
                yield MovedBy(moved, rows_of(commit), sum(file.bytes for file in commit.added))


def rows_of(commit: Commit) -> int:
    """Return an epoch's changed row count, from its counters."""
    return Counters.from_json(commit.counters).output_count


def last_epoch(log: Log, version: int) -> int:
    """Return the last epoch up to a version: compactions do not move a position.

    Never an expired one: then it is the first readable version.
    """
    look = log.refresh()
    head = look.head()
    if version >= head.changed:
        return max(head.changed, head.since)
    epochs = (v for v in range(version, head.since, -1) if look.commit(v).is_epoch)
    return next(epochs, head.since)
