"""Row-by-row relations (filter, projection, unnest), and SQL formulas over columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Mask, Positions
from spark_upsert.core.names import find_repeated, has_column
from spark_upsert.errors import PlanError
from spark_upsert.plan import expressions
from spark_upsert.plan.join_keys import NOWHERE, empty_batch
from spark_upsert.plan.nodes import Filter, Formula, Project, Unnest, unnest, unnested_schema
from spark_upsert.views.intervals import RelationRows, Spans, take_rows
from spark_upsert.views.relation import (
    At,
    LookedUpRows,
    Relation,
    Step,
    align_rows,
    distinct_rows,
    filter_matching,
    rename_columns,
)
from spark_upsert.views.row_errors import ComputeColumn, NodeFormulas

_NAME = re.compile(r"\s*(?:(\w+)|`((?:[^`]|``)+)`)\s*")


def plain_column(formula: Formula, columns: pa.Schema) -> str | None:
    """Return the column if the formula is a bare column name; else None."""
    name = _name(formula)
    return name if name is not None and has_column(columns, name) else None


def quote_column(name: str) -> str:
    """Return the formula for a bare column, whatever its name."""
    return f"`{name.replace('`', '``')}`"


def columns_read(formula: Formula) -> frozenset[str] | None:
    """Return the column names possibly read by a formula; None if they cannot be determined."""
    if not isinstance(formula, str):
        return None
    name = _name(formula)
    return expressions.columns_of(formula) if name is None else frozenset([name])


def _name(formula: Formula) -> str | None:
    """Return the name if the formula is one, plain or in backquotes; else None."""
    match = _NAME.fullmatch(formula) if isinstance(formula, str) else None
    return None if match is None else match[1] or match[2].replace("``", "`")


@dataclass(frozen=True, slots=True)
class BoundFormula:
    """A formula over columns: a single column, or an expression."""

    type: pa.DataType
    formula: str | expressions.BoundExpression

    @classmethod
    def to(cls, formula: Formula, columns: pa.Schema) -> BoundFormula:
        """Bind a formula to columns."""
        plain = plain_column(formula, columns)
        if plain is not None:
            return cls(columns.field(plain).type, plain)
        bound = expressions.bind(formula, columns)
        return cls(bound.type, bound)

    @classmethod
    def to_condition(cls, formula: Formula, columns: pa.Schema) -> BoundFormula:
        """Bind a condition: a formula with the value true, false or unknown (`to`)."""
        return cls(pa.bool_(), expressions.bind_condition(formula, columns))

    def of(self, rows: RelationRows) -> pa.Array:
        """Return the values for some rows, in their order."""
        return rows.column(self.formula) if isinstance(self.formula, str) else self.formula(rows)


def is_true(values: pa.Array) -> Mask:
    """Return where a condition is TRUE: neither FALSE nor NULL."""
    known_values = values.fill_null(False)
    return np.asarray(known_values.to_numpy(zero_copy_only=False), dtype=np.bool_)


class FilterRelation:
    """The input rows for which a condition is TRUE (`Relation`)."""

    def __init__(self, node: Filter, input_: Relation) -> None:
        self.schema = input_.schema
        self.key = input_.key
        self.dropped = input_.dropped
        self.sources = input_.sources
        self.driving = input_.driving
        self.paths = input_.paths
        self.worth_scanning = input_.worth_scanning
        self._input = input_
        self._where = BoundFormula.to_condition(node.where, self.schema)
        self._own = NodeFormulas(node, [self._where], input_)
        self.formulas = (*input_.formulas, self._own)
        self.may_lack_key = input_.may_lack_key and not self._rejects_null_keys(node.where)

    def _rejects_null_keys(self, where: Formula) -> bool:
        """Return whether a row without a key does not pass, whatever else is in it."""
        if not (columns_read(where) or {""}) <= set(self.key or ()):
            return False  # What does not read the key alone may let it pass.
        [passes] = is_true(self._where.of(take_rows(empty_batch(self.schema), np.array([NOWHERE]))))
        return not passes

    def depends_on_one_row(self, path: str) -> bool:
        """As the input's (`Relation.depends_on_one_row`)."""
        return self._input.depends_on_one_row(path)

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """As the input's (`Relation.require_findable`)."""
        self._input.require_findable(columns, moving)

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the passing rows for keys touched by a step (`Relation.spans`)."""
        for spans in self._input.spans(step):
            yield spans.filter(self._condition_mask(spans.rows))

    def look_up(self, keys: RelationRows, at: At) -> LookedUpRows:
        """Return the rows for keys (`Relation.look_up`)."""
        matches = self._input.look_up(keys, at)
        return self._filter_side(_Side(matches.rows, matches.present))

    def find_matching(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows with some values (`Relation.find_matching`)."""
        return map(self._filter_rows, self._input.find_matching(values, at, hash_range))

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`Relation.scan`)."""
        return self._filter_rows(self._input.scan(at, hash_range))

    def _filter_side(self, side: _Side) -> LookedUpRows:
        present = side.spread(self._condition_mask(side.rows))
        return LookedUpRows(take_rows(side.rows, np.where(present, side.at, NOWHERE)), present)

    def _filter_rows(self, rows: RelationRows) -> RelationRows:
        return rows.filter(pa.array(self._condition_mask(rows)))

    def _condition_mask(self, rows: RelationRows) -> Mask:
        """Return a mask: the rows for which the condition is TRUE; rows without a value do not
        pass.
        """
        [values] = self._own.of(rows)
        return is_true(values)


class ProjectRelation:
    """Projected columns for the input rows (`Relation`).

    Parameters
    ----------
    node : Project
    input_ : Relation
    like : mapping of str to Column, optional
        Computes a column in place of its formula.
    carries : bool
        Whether key columns dropped by the projection are appended to the output, under other names,
        for looking up each row again.
    """

    def __init__(
        self,
        node: Project,
        input_: Relation,
        like: Mapping[str, ComputeColumn] | None = None,
        *,
        carries: bool = False,
    ) -> None:
        self._input = input_
        names = [column.name for column in node.columns]
        repeated = find_repeated(names, is_exact=True)
        if repeated is not None:
            name, _ = repeated
            raise PlanError(f"two columns are called '{name}'.", hint="rename one.", column=name)
        self._bound: list[ComputeColumn] = [
            (like or {}).get(column.name) or BoundFormula.to(column.formula, input_.schema)
            for column in node.columns
        ]
        plain: list[tuple[str | None, str]] = [
            (plain_column(column.formula, input_.schema), column.name) for column in node.columns
        ]
        carried = _hidden_key_columns(input_, plain) if carries else []
        plain += carried
        names += [name for _, name in carried]
        self._bound += [
            BoundFormula(input_.schema.field(source_name).type, source_name)
            for source_name, _ in carried
        ]
        self.schema = pa.schema(
            [(name, bound.type) for name, bound in zip(names, self._bound, strict=True)]
        )
        self._own = NodeFormulas(node, self._bound, input_)
        self.formulas = (*input_.formulas, self._own)
        self.paths = input_.paths
        self.worth_scanning = input_.worth_scanning
        self._sources = {name: source for source, name in plain if source is not None}
        """The input column for each plain column reference."""
        name_by_source = {source: name for name, source in reversed(self._sources.items())}
        lost = (name for name in input_.key or () if name not in name_by_source)
        self.dropped = input_.dropped or next(lost, None)
        keeps = self.dropped is None
        self.key = tuple(name_by_source[name] for name in input_.key or ()) if keeps else None
        self.may_lack_key = input_.may_lack_key
        self.sources = tuple(
            renamed_source
            for source in input_.sources
            for renamed_source in source.rename(name_by_source)
        )
        driving = input_.driving
        if keeps:
            driving = driving._replace(
                columns=tuple(name_by_source[name] for name in driving.columns)
            )
        self.driving = driving

    def depends_on_one_row(self, path: str) -> bool:
        """As the input's (`Relation.depends_on_one_row`)."""
        return self._input.depends_on_one_row(path)

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """Raise unless the input finds rows by one of its plain columns."""
        stored = [self._sources[name] for name in columns if name in self._sources]
        if not stored:
            raise PlanError(
                f"an index is on stored columns, and '{columns[0]}' is computed.",
                hint=f"store '{columns[0]}' in the table, or join with reverse='scan'.",
                column=columns[0],
            )
        self._input.require_findable(stored, moving)

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the rows for keys touched by a step (`Relation.spans`)."""
        for spans in self._input.spans(step):
            yield spans.with_rows(self._project(spans.rows))

    def look_up(self, keys: RelationRows, at: At) -> LookedUpRows:
        """Return the rows for keys (`Relation.look_up`)."""
        assert self.key is not None
        inner = rename_columns(keys, self.key, [self._sources[name] for name in self.key])
        matches = self._input.look_up(inner, at)
        side = _Side(matches.rows, matches.present)
        return LookedUpRows(take_rows(self._project(side.rows), side.at), matches.present)

    def find_matching(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows with some values (`Relation.find_matching`)."""
        stored = [name for name in values.schema.names if name in self._sources]
        input_rows: Iterator[RelationRows]
        if stored:
            inner = rename_columns(values, stored, [self._sources[name] for name in stored])
            input_rows = map(self._project, self._input.find_matching(inner, at, hash_range))
        else:
            input_rows = iter([self.scan(at, hash_range)])
        is_all = len(stored) == values.num_columns
        return input_rows if is_all else (filter_matching(rows, values) for rows in input_rows)

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`Relation.scan`)."""
        return self._project(self._input.scan(at, hash_range))

    def _project(self, rows: RelationRows) -> RelationRows:
        return pa.RecordBatch.from_arrays(self._own.of(rows), schema=self.schema)


def _hidden_key_columns(
    input_: Relation, plain: Sequence[tuple[str | None, str]]
) -> list[tuple[str, str]]:
    """Return the key columns dropped by a projection, each with an unused name."""
    needed = [*(input_.key or ()), *(name for source in input_.sources for name in source.columns)]
    pairs: list[tuple[str, str]] = []
    taken_names = {name.casefold() for _, name in plain}
    sources = {source for source, _ in plain}
    for column_name in dict.fromkeys(needed):
        if column_name not in sources:
            name = f"__{column_name}"
            while name.casefold() in taken_names:
                name = f"_{name}"
            taken_names.add(name.casefold())
            pairs.append((column_name, name))
    return pairs


class UnnestRelation:
    """A row per list element (`Relation`)."""

    def __init__(self, node: Unnest, input_: Relation) -> None:
        if node.position is None:
            raise PlanError(
                "a view tells the elements of a list apart by their places, and has no column for "
                "them.",
                hint="name one: position='pos'.",
            )
        self._node = node
        self._input = input_
        self.schema = unnested_schema(node, input_.schema)
        assert input_.key is not None
        self.key = (*input_.key, node.position)
        self.may_lack_key = False  # The place is never NULL.
        self.dropped = None
        self.sources = input_.sources
        self.driving = input_.driving
        self.formulas = input_.formulas
        self.paths = input_.paths
        self.worth_scanning = input_.worth_scanning

    def depends_on_one_row(self, path: str) -> bool:
        """As the input's (`Relation.depends_on_one_row`)."""
        return self._input.depends_on_one_row(path)

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """Raise unless the input finds rows by one of its plain columns."""
        stored = self._input_columns(columns)
        if not stored:
            raise PlanError(
                f"an index is on stored columns, and '{columns[0]}' is unnested.",
                hint="join on another column, or with reverse='scan'.",
                column=columns[0],
            )
        self._input.require_findable(stored, moving)

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the rows for keys touched by a step (`Relation.spans`)."""
        for spans in self._input.spans(step):
            unnested = unnest(self._node, spans.rows, self.schema)
            yield spans.with_owned_rows(unnested.rows, unnested.owners)

    def look_up(self, keys: RelationRows, at: At) -> LookedUpRows:
        """Return the rows for keys (`Relation.look_up`)."""
        assert self._input.key is not None
        matches = self._input.look_up(distinct_rows(keys.select(list(self._input.key))), at)
        return align_rows(self._explode(matches.rows.filter(pa.array(matches.present))), keys)

    def find_matching(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows with some values (`Relation.find_matching`)."""
        stored = self._input_columns(values.schema.names)
        if not stored:
            yield filter_matching(self.scan(at, hash_range), values)
            return
        for rows in self._input.find_matching(values.select(stored), at, hash_range):
            yield filter_matching(self._explode(rows), values)

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`Relation.scan`)."""
        return self._explode(self._input.scan(at, hash_range))

    def _input_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the unchanged input columns."""
        return [name for name in columns if name not in (self._node.column, self._node.position)]

    def _explode(self, rows: RelationRows) -> RelationRows:
        return unnest(self._node, rows, self.schema).rows


class _Side:
    """One side's existing rows in pairs, with their pair positions."""

    def __init__(self, rows: RelationRows, present: Mask) -> None:
        self.rows = rows.filter(pa.array(present))
        self.at: Positions = np.where(present, np.cumsum(present) - 1, NOWHERE)

    def spread(self, mask: Mask) -> Mask:
        """Return a row mask expanded to the pairs."""
        result = self.at != NOWHERE
        result[result] = mask
        return result
