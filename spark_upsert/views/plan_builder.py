"""The plan builder (`Plan`): views as method chains, validated against the tables at each step.

A plan names only its used columns, so a later table column changes neither text nor fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Generic, NoReturn, Self, TypeAlias, TypeVar

import pyarrow as pa

from spark_upsert.core.key_hash import HASH_END, HashRange
from spark_upsert.errors import PlanError, did_you_mean
from spark_upsert.options.declare import absolute_path, member
from spark_upsert.options.read import OnError
from spark_upsert.plan.aggregates import (
    Aggregate,
    require_texts,
    right_columns_by_left,
    unknown_group_attribute,
    unknown_plan_attribute,
    wrong_argument,
)
from spark_upsert.plan.join_keys import empty_batch
from spark_upsert.plan.nodes import (
    Filter,
    Formula,
    Group,
    Join,
    JoinKeys,
    JoinType,
    Node,
    Project,
    ProjectedColumn,
    Reverse,
    Scan,
    Unnest,
    require_depth,
)
from spark_upsert.store.open import checked_storage, open_store, path_text
from spark_upsert.table.log.manifest import KeptPosition
from spark_upsert.table.retention.expiry import retry_after_expiry
from spark_upsert.table.table import Table
from spark_upsert.table.write.outcomes import NOTHING
from spark_upsert.views.group_rows import compute_results
from spark_upsert.views.grouping import contributions
from spark_upsert.views.intervals import Pairs, concat
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.relation import At, Relation, Step
from spark_upsert.views.rowwise import columns_read
from spark_upsert.views.scan import BaseTable
from spark_upsert.views.view import (
    View,
    bind,
    bind_below_group,
    bind_group,
    list_base_tables,
    make_scan,
    open_base,
    pairs_by_piece,
)


def refresh(view: View, table: Table, *, on_error: OnError = OnError.FAIL) -> bool:
    """Update the table materializing a grouped view; create it if it does not exist.

    A refresh leaves a lease on each of the view's tables, for a lease's duration (`LEASE_MS`),
    because the next refresh begins there. It renews the leases even if there is nothing to do: a
    table without a writer may be compacted and expired, too.
    """
    assert view.grouping is not None
    view_table = MaterializedView.create(table, view.grouping, view.plan.to_json())
    recorded, consumer = view_table.position(), f"refresh-{table.log.head().table_id}"
    begun = _begin(view, recorded)

    def held() -> At:
        newest = view.newest()
        view.keep_held(consumer, newest if begun is None else begun[0])
        return newest

    newest = retry_after_expiry(held, view.urls)
    view = view.rebind_if_altered()
    grouping = view.grouping
    assert grouping is not None
    at, cut = begun or (newest, 0)
    with view.use_cached_heads():
        upper = view.materialized_position(newest).text
        if upper == recorded:
            return False
        every = (contributions(grouping, pairs) for pairs in _pairs(view, at, cut, newest))
        nonempty = [batch for batch in every if batch.num_rows]
    # What several pieces contribute to one group the table sums up, as it does of several tasks.
    view.report_failures(newest, on_error)
    group_rows = concat(nonempty or [empty_batch(grouping.stored_schema.columns)])
    has_moved = view_table.apply(group_rows, lower=recorded, upper=upper)
    view.hold(consumer, newest)
    return has_moved


def _begin(view: View, recorded: str) -> tuple[At, int | None] | None:
    """Return a materialized table's position and snapshot progress; None before the first step."""
    if recorded == NOTHING:
        return None
    position = KeptPosition.read(recorded)
    view.require_materialized_from(position)
    return {path: table_ref.version for path, table_ref in position.at.items()}, position.snapshot


def _pairs(view: View, at: At, cut: int | None, newest: At) -> Iterator[Pairs]:
    """Yield the rows missing from a first snapshot, and the changes since."""
    relation = view.relation
    if cut is not None:
        for piece in relation.driving.chunks(at, HashRange(cut, HASH_END)):
            yield Pairs.of_inserts(relation.scan(at, piece))
    if dict(at) != dict(newest):
        step, moved = Step(at, newest), list(view.iter_epochs(at, newest))
        rows = sum(moved_table.rows for moved_table in moved)
        yield from pairs_by_piece(
            relation, step, view.choose_strategy(step, moved).strategy, rows=rows
        )


Wanted: TypeAlias = frozenset[str] | None
"""Column names, case-folded as in SQL; None: all. Unknown names are ignored."""


def prune_columns(node: Node, wanted: Wanted = None) -> Node:
    """Return an equivalent plan whose scans read only the columns used by the plan."""
    match node:
        case Scan():
            return _prune_scan(node, wanted)
        case Filter():
            needed = _union(wanted, _used_columns([node.where]))
            return replace(node, input=prune_columns(node.input, needed))
        case Project():
            needed = _used_columns(column.formula for column in node.columns)
            return _drop_identity_projection(replace(node, input=prune_columns(node.input, needed)))
        case Unnest():
            return replace(
                node, input=prune_columns(node.input, _union(wanted, _fold_names(node.column)))
            )
        case Join():
            left, right = (_fold_names(*names) for names in zip(*node.on, strict=True))
            return replace(
                node,
                left=prune_columns(node.left, _union(wanted, left)),
                right=prune_columns(node.right, _union(wanted, right)),
            )
        case Group():
            columns = (
                aggregate.column for aggregate in node.aggregates if aggregate.column is not None
            )
            return replace(node, input=prune_columns(node.input, _fold_names(*node.keys, *columns)))
        case _:
            return node


def _prune_scan(node: Scan, wanted: Wanted) -> Scan:
    """Return a scan with only the wanted columns and its key."""
    if wanted is None:
        return node
    needed = wanted | _fold_names(*node.key)
    return replace(node, columns=tuple(c for c in node.columns if c.name.casefold() in needed))


def _drop_identity_projection(node: Project) -> Node:
    """Return the scan below an identity projection; any other projection is unchanged.

    An identity projection selects all the scan's columns, in order, under their own names.
    """
    child = node.input
    if isinstance(child, Scan):
        identity = [(column.name, column.name) for column in child.columns]
        if [tuple(column) for column in node.columns] == identity:
            return child
    return node


def _used_columns(formulas: Iterable[Formula]) -> Wanted:
    """Return the columns read by formulas."""
    needed: Wanted = frozenset()
    for formula in formulas:
        columns = columns_read(formula)
        needed = _union(needed, None if columns is None else _fold_names(*columns))
    return needed


def _union(wanted: Wanted, more: Wanted) -> Wanted:
    """Return both sets' columns; None means all columns."""
    return None if wanted is None or more is None else wanted | more


def _fold_names(*names: str) -> frozenset[str]:
    """Return the case-folded names."""
    return frozenset(name.casefold() for name in names)


@dataclass(frozen=True)
class Plan:
    """A plan over tables, with methods for further steps.

    Every method returns another plan and raises a `PlanError` if it could not be run; the message
    names the node and the column.
    """

    node: Node
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of_table(cls, path: str | PathLike[str], storage: Mapping[str, str] | None = None) -> Self:
        """Return all rows in a table, with its current columns."""
        path, storage_options = path_text(path), checked_storage(storage)
        table = Table(open_store(path, storage_options))
        return cls(make_scan(absolute_path(path), table), storage_options)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise for other engines' method names, with the equivalent in this API."""
        raise unknown_plan_attribute(name)

    def filter(self, where: str) -> Self:
        """Keep the rows for which a condition is true: neither false nor unknown."""
        require_texts("filter", "a condition", [where])
        return self._with(Filter(input=self.node, where=where))

    def select(self, *columns: str, **formulas: str) -> Self:
        """Select columns, and compute others: ``select("id", eur="amount * 0.9")``.

        The key columns must be included, under any name, unless groups follow.
        """
        require_texts("select", "names of columns, and formulas by their names", columns)
        require_texts("select", "formulas", formulas.values())
        named = [ProjectedColumn(name, name) for name in columns]
        named += [ProjectedColumn(name, formula) for name, formula in formulas.items()]
        return self._with(Project(input=self.node, columns=tuple(named)))

    def join(
        self,
        other: Plan,
        on: Mapping[str, str] | Sequence[str] | str,
        how: str = "inner",
        *,
        reverse: str = "index",
        mixed_bases: bool = False,
    ) -> Self:
        """Join rows equal in some columns."""
        if not isinstance(other, Plan):
            raise wrong_argument("join", "another plan", other)
        pairs = right_columns_by_left(on)
        if not mixed_bases:
            self._require_one_version(other)
        join = Join(
            left=self.node,
            right=other.node,
            on=tuple(JoinKeys(left, right) for left, right in pairs.items()),
            how=_one_of(JoinType, "how", how),
            reverse=_one_of(Reverse, "reverse", reverse),
        )
        return self._with(join)

    def unnest(self, column: str) -> Self:
        """Emit one row per list element, with its position, from 0, in the column ``pos``."""
        require_texts("unnest", "the name of a column", [column])
        return self._with(Unnest(input=self.node, column=column))

    def group_by(self, *columns: str) -> GroupedRows[Self]:
        """Group the rows by columns; without columns, all rows are one group.

        The aggregates follow: ``group_by("country").agg(n=agg.count())``.
        """
        require_texts("group_by", "names of columns", columns)
        return GroupedRows(self, columns)

    def at_version(self, version: int) -> Self:
        """Pin a table at a version: its changes change nothing."""
        if not isinstance(self.node, Scan):
            raise PlanError(
                f"node '{self.node.title}' is no table, and tables are pinned.",
                hint="pin each table: view(path).at_version(...).",
            )
        return self._with(replace(self.node, version=version))

    def limit(self, count: int) -> NoReturn:
        """Raise: which rows come first is not a function of one row."""
        raise PlanError(
            f"limit({count}) is not a function of one row.", hint="limit what you read of a view."
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns; for a grouped view, its result columns."""
        if isinstance(self.node, Group):
            return bind_group(self.node, self._open)[1].result_schema
        return self._bind().schema

    @property
    def key(self) -> tuple[str, ...] | None:
        """The columns identifying a row; None if a projection drops them."""
        return self.node.keys if isinstance(self.node, Group) else self._bind().key

    def to_json(self) -> str:
        """Return the plan as text, for the option ``plan``."""
        if isinstance(self.node, Group):
            bind_group(self.node, self._open)
        else:
            bind(self.node, self._open)
        return self.node.to_json()

    def to_arrow(self, *, on_error: str = "fail") -> pa.Table:
        """Return the view's rows from its current tables, all in memory, in no particular order."""
        self.to_json()
        view, policy = View(self.node, self.storage), member("onError", on_error, OnError)
        newest = view.newest()
        view = view.rebind_if_altered()
        rows = view.relation.scan(newest)
        view.report_failures(newest, policy)
        if view.grouping is not None:
            entries = contributions(view.grouping, Pairs.of_inserts(rows))
            rows = compute_results(view.grouping, entries, url="memory")
        return pa.Table.from_batches([rows])

    def refresh(self, path: str, *, on_error: str = "fail") -> bool:
        """Update the table materializing a grouped view, in this process."""
        if not isinstance(self.node, Group):
            raise PlanError(
                f"node '{self.node.title}' gives rows, and groups are refreshed.",
                hint="group first: .group_by(...).agg(...); or keep the rows by a query: .keep.",
            )
        policy = member("onError", on_error, OnError)
        table = Table(open_store(path, self.storage))
        return refresh(View(self.node, self.storage), table, on_error=policy)

    def _require_one_version(self, other: Plan) -> None:
        """Raise if a table may be included at two versions, because one side materializes it."""
        mine, theirs = self._base_tables(), other._base_tables()
        for path in mine.keys() & theirs.keys():
            if len(mine[path] | theirs[path]) > 1:
                label = path.rstrip("/").rpartition("/")[2]
                raise PlanError(
                    f"{label} comes in twice, maybe at two versions: in "
                    f"{' and in '.join(sorted(mine[path] | theirs[path]))}.",
                    hint="use one plan over the tables themselves, or mixed_bases=True.",
                    table=label,
                )

    def _base_tables(self) -> dict[str, set[str]]:
        """Return the plan's shown tables, and the tables through which it reads each."""
        sources_by_name: dict[str, set[str]] = {}
        for node in self.node.walk():
            if isinstance(node, Scan):
                for path in list_base_tables(node.path, self._table(node.path)):
                    sources_by_name.setdefault(path, set()).add(node.path)
        return sources_by_name

    def _table(self, path: str) -> Table:
        return Table(open_store(path, self.storage))

    def _with(self, node: Node) -> Self:
        require_depth(node)
        grown = replace(self, node=node)
        if isinstance(node, Group):
            bind_group(node, self._open)
        else:
            grown._bind()
        # After the check, because its errors list all existing columns.
        return (
            replace(self, node=prune_columns(node)) if isinstance(node, Group | Project) else grown
        )

    def _bind(self) -> Relation:
        return bind_below_group(self.node, self._open)

    def _open(self, scan: Scan) -> BaseTable:
        return open_base(scan, self._table(scan.path))


_Plan = TypeVar("_Plan", bound=Plan)


@dataclass(frozen=True)
class GroupedRows(Generic[_Plan]):
    """Grouped rows without aggregates yet."""

    rows: _Plan
    columns: tuple[str, ...]

    def __getattr__(self, name: str) -> NoReturn:
        """Raise for other engines' method names on groups, with the equivalent in this API."""
        raise unknown_group_attribute(name)

    def agg(self, **wanted: Aggregate) -> _Plan:
        """Return a view with a row per group: its columns, then the aggregates.

        A table can materialize it (`keep`, `refresh`); before, it accepts no further steps.
        """
        for aggregate in wanted.values():
            if not isinstance(aggregate, Aggregate):
                raise wrong_argument("agg", "agg.count(), agg.sum(...) and their like", aggregate)
        named = tuple(unnamed._replace(name=name) for name, unnamed in wanted.items())
        return self.rows._with(Group(input=self.rows.node, keys=self.columns, aggregates=named))


_Choice = TypeVar("_Choice", JoinType, Reverse)


def _one_of(choices: type[_Choice], name: str, value: str) -> _Choice:
    names = [choice.value for choice in choices]
    if value not in names:
        raise PlanError(f"a join has no {name}='{value}'.", hint=did_you_mean(value, names))
    return choices(value)
