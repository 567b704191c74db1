"""Operators that see one row at a time: filters, projections, and lists that become rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from spark_upsert.errors import PlanError
from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.names import find_repeated
from spark_upsert.plan.kernels.equal_keys import NOWHERE
from spark_upsert.plan.kernels.taking import no_rows
from spark_upsert.plan.nodes import Filter, Formula, Project, Unnest
from spark_upsert.plan.unnest import unnest, unnested_schema
from spark_upsert.views.failing import ComputeColumn, NodeFormulas
from spark_upsert.views.formulas import BoundFormula, columns_read, is_true, plain_column
from spark_upsert.views.pairs import RelationRows, taken
from spark_upsert.views.relation import (
    At,
    Looked,
    Relation,
    Step,
    aligned,
    distinct,
    matching,
    renamed,
)
from spark_upsert.views.spans import Spans


class FilterRelation:
    """The rows of an input for which a condition is TRUE (`Relation`)."""

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
        self.may_lack_key = input_.may_lack_key and not self._refuses_null(node.where)

    def _refuses_null(self, where: Formula) -> bool:
        """Return whether a row without a key does not pass, whatever else is in it."""
        if not (columns_read(where) or {""}) <= set(self.key or ()):
            return False  # What does not read the key alone may let it pass.
        [passes] = is_true(self._where.of(taken(no_rows(self.schema), np.array([NOWHERE]))))
        return not passes

    def depends_on_one_row(self, path: str) -> bool:
        """As the input's (`Relation.depends_on_one_row`)."""
        return self._input.depends_on_one_row(path)

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """As the input's (`Relation.require_findable`)."""
        self._input.require_findable(columns, moving)

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the rows that pass, of keys that a step touched (`Relation.spans`)."""
        for spans in self._input.spans(step):
            yield spans.where(self._holds(spans.rows))

    def look_up(self, keys: RelationRows, at: At) -> Looked:
        """Return the rows of keys (`Relation.look_up`)."""
        found = self._input.look_up(keys, at)
        return self._passing_of(_Side(found.rows, found.present))

    def having(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows with some values (`Relation.having`)."""
        return map(self._passing, self._input.having(values, at, hash_range))

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`Relation.scan`)."""
        return self._passing(self._input.scan(at, hash_range))

    def _passing_of(self, side: _Side) -> Looked:
        present = side.spread(self._holds(side.rows))
        return Looked(taken(side.rows, np.where(present, side.at, NOWHERE)), present)

    def _passing(self, rows: RelationRows) -> RelationRows:
        return rows.filter(pa.array(self._holds(rows)))

    def _holds(self, rows: RelationRows) -> Mask:
        """Return for which rows the condition is TRUE: what has no value does not pass."""
        [values] = self._own.of(rows)
        return is_true(values)


class ProjectRelation:
    """Other columns of the rows of an input (`Relation`).

    Parameters
    ----------
    node : Project
    input_ : Relation
    like : mapping of str to Column, optional
        What computes a column in the place of its formula.
    carries : bool
        Whether columns of keys that the projection drops come out behind its own, under other
        names, so that each row is found again.
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
            (plain_column(each.formula, input_.schema), each.name) for each in node.columns
        ]
        carried = _carried(input_, plain) if carries else []
        plain += carried
        names += [name for _, name in carried]
        self._bound += [BoundFormula(input_.schema.field(own).type, own) for own, _ in carried]
        self.schema = pa.schema(
            [(name, bound.type) for name, bound in zip(names, self._bound, strict=True)]
        )
        self._own = NodeFormulas(node, self._bound, input_)
        self.formulas = (*input_.formulas, self._own)
        self.paths = input_.paths
        self.worth_scanning = input_.worth_scanning
        self._sources = {name: source for source, name in plain if source is not None}
        """The input's column of each that is nothing else."""
        own = {source: name for name, source in reversed(self._sources.items())}
        lost = (name for name in input_.key or () if name not in own)
        self.dropped = input_.dropped or next(lost, None)
        keeps = self.dropped is None
        self.key = tuple(own[name] for name in input_.key or ()) if keeps else None
        self.may_lack_key = input_.may_lack_key
        self.sources = tuple(found for each in input_.sources for found in each.renamed(own))
        driving = input_.driving
        if keeps:
            driving = driving._replace(columns=tuple(own[name] for name in driving.columns))
        self.driving = driving

    def depends_on_one_row(self, path: str) -> bool:
        """As the input's (`Relation.depends_on_one_row`)."""
        return self._input.depends_on_one_row(path)

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """Raise unless the input finds one of the columns that are its own."""
        stored = [self._sources[name] for name in columns if name in self._sources]
        if not stored:
            raise PlanError(
                f"an index is on stored columns, and '{columns[0]}' is computed.",
                hint=f"store '{columns[0]}' in the table, or join with reverse='scan'.",
                column=columns[0],
            )
        self._input.require_findable(stored, moving)

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the rows of keys that a step touched (`Relation.spans`)."""
        for spans in self._input.spans(step):
            yield spans.with_rows(self._projected(spans.rows))

    def look_up(self, keys: RelationRows, at: At) -> Looked:
        """Return the rows of keys (`Relation.look_up`)."""
        assert self.key is not None
        inner = renamed(keys, self.key, [self._sources[name] for name in self.key])
        found = self._input.look_up(inner, at)
        side = _Side(found.rows, found.present)
        return Looked(taken(self._projected(side.rows), side.at), found.present)

    def having(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows with some values (`Relation.having`)."""
        stored = [name for name in values.schema.names if name in self._sources]
        found: Iterator[RelationRows]
        if stored:
            inner = renamed(values, stored, [self._sources[name] for name in stored])
            found = map(self._projected, self._input.having(inner, at, hash_range))
        else:
            found = iter([self.scan(at, hash_range)])
        is_all = len(stored) == values.num_columns
        return found if is_all else (matching(rows, values) for rows in found)

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`Relation.scan`)."""
        return self._projected(self._input.scan(at, hash_range))

    def _projected(self, rows: RelationRows) -> RelationRows:
        return pa.RecordBatch.from_arrays(self._own.of(rows), schema=self.schema)


def _carried(input_: Relation, plain: Sequence[tuple[str | None, str]]) -> list[tuple[str, str]]:
    """Return the columns of keys that a projection drops, each with a name that is free."""
    wanted = [*(input_.key or ()), *(name for each in input_.sources for name in each.columns)]
    found: list[tuple[str, str]] = []
    taken_names = {name.casefold() for _, name in plain}
    sources = {source for source, _ in plain}
    for own in dict.fromkeys(wanted):
        if own not in sources:
            name = f"__{own}"
            while name.casefold() in taken_names:
                name = f"_{name}"
            taken_names.add(name.casefold())
            found.append((own, name))
    return found


class UnnestRelation:
    """A row per element of a list (`Relation`)."""

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
        """Raise unless the input finds one of the columns that are its own."""
        stored = self._stored(columns)
        if not stored:
            raise PlanError(
                f"an index is on stored columns, and '{columns[0]}' is unnested.",
                hint="join on another column, or with reverse='scan'.",
                column=columns[0],
            )
        self._input.require_findable(stored, moving)

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the rows of keys that a step touched (`Relation.spans`)."""
        for spans in self._input.spans(step):
            found = unnest(self._node, spans.rows, self.schema)
            yield spans.owning(found.rows, found.owners)

    def look_up(self, keys: RelationRows, at: At) -> Looked:
        """Return the rows of keys (`Relation.look_up`)."""
        assert self._input.key is not None
        found = self._input.look_up(distinct(keys.select(list(self._input.key))), at)
        return aligned(self._exploded(found.rows.filter(pa.array(found.present))), keys)

    def having(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows with some values (`Relation.having`)."""
        stored = self._stored(values.schema.names)
        if not stored:
            yield matching(self.scan(at, hash_range), values)
            return
        for rows in self._input.having(values.select(stored), at, hash_range):
            yield matching(self._exploded(rows), values)

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`Relation.scan`)."""
        return self._exploded(self._input.scan(at, hash_range))

    def _stored(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that are the input's own."""
        return [name for name in columns if name not in (self._node.column, self._node.position)]

    def _exploded(self, rows: RelationRows) -> RelationRows:
        return unnest(self._node, rows, self.schema).rows


class _Side:
    """The rows of one side of pairs that are there, and where each belongs."""

    def __init__(self, rows: RelationRows, present: Mask) -> None:
        self.rows = rows.filter(pa.array(present))
        self.at: Positions = np.where(present, np.cumsum(present) - 1, NOWHERE)

    def spread(self, mask: Mask) -> Mask:
        """Return what holds for the rows as it holds for the pairs."""
        result = self.at != NOWHERE
        result[result] = mask
        return result
