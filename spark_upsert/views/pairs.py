"""A step's row changes (`Pairs`): old and new row per key, at most one pair each.

Within a plan rows are compared by their bits, rows that leave a plan by SQL equality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask, Positions, equal_rows, identical_rows
from spark_upsert.plan.join_keys import NOWHERE, codes, firsts, no_rows, places, values_at

RelationRows: TypeAlias = pa.RecordBatch
"""A relation's rows: at most one per key."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Old and new rows for the same keys, in the same order.

    Attributes
    ----------
    old, new : pyarrow.RecordBatch, shape (n,)
        Rows with one schema. If a row is absent its columns are NULL, and meaningless.
    has_old, has_new : numpy.ndarray of bool, shape (n,)
        Which rows exist. A pair without either carries no change.
    """

    old: RelationRows
    new: RelationRows
    has_old: Mask
    has_new: Mask

    def __len__(self) -> int:
        return int(self.old.num_rows)

    @property
    def schema(self) -> pa.Schema:
        """The row columns."""
        return self.new.schema

    @classmethod
    def none(cls, schema: pa.Schema) -> Pairs:
        """Return no pairs."""
        return cls.of_inserts(no_rows(schema))

    @classmethod
    def of_inserts(cls, rows: RelationRows) -> Pairs:
        """Return rows that were not there before."""
        every = np.arange(rows.num_rows)
        return cls.taken_from(rows, rows, np.full_like(every, NOWHERE), every)

    @classmethod
    def aligned(cls, old: RelationRows, new: RelationRows, key: Sequence[str]) -> Pairs:
        """Return the pairs from two row sets, each with at most one row per key."""
        before, after = codes(columns_of(old, key), columns_of(new, key))
        keys = firsts(np.concatenate([before, after]))
        keys = np.concatenate([before, after])[keys]
        return cls.taken_from(old, new, places(keys, before), places(keys, after))

    @classmethod
    def taken_from(
        cls, old: RelationRows, new: RelationRows, old_at: Positions, new_at: Positions
    ) -> Pairs:
        """Return pairs by row positions, `NOWHERE` for an absent row."""
        return cls(taken(old, old_at), taken(new, new_at), old_at != NOWHERE, new_at != NOWHERE)

    @classmethod
    def concat(cls, parts: Sequence[Pairs]) -> Pairs:
        """Concatenate pairs with disjoint keys."""
        return cls(
            concat([part.old for part in parts]),
            concat([part.new for part in parts]),
            np.concatenate([part.has_old for part in parts]),
            np.concatenate([part.has_new for part in parts]),
        )

    @classmethod
    def netted(cls, steps: Sequence[Pairs], key: Sequence[str]) -> Pairs:
        """Return consecutive steps' net changes: the first old row and the last new one."""
        if len(steps) == 1:
            return steps[0]
        every = cls.concat(steps)
        numbers = codes(every.keys(key).columns)[0]
        first = firsts(numbers)
        last = len(numbers) - 1 - places(numbers[first], numbers[::-1])
        return cls(
            taken(every.old, first),
            taken(every.new, last),
            every.has_old[first],
            every.has_new[last],
        )

    def keys(self, names: Sequence[str]) -> RelationRows:
        """Return columns from the existing row, the old one if both exist.

        Both rows have equal values in the key columns.
        """
        chosen = pa.array(self.has_old)
        arrays = [
            pc.if_else(chosen, self.old.column(name), self.new.column(name)) for name in names
        ]
        return pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([self.schema.field(name) for name in names])
        )

    def old_rows(self) -> RelationRows:
        """Return the old rows alone, in pair order."""
        return self.old.filter(pa.array(self.has_old))

    def new_rows(self) -> RelationRows:
        """Return the new rows alone, in pair order."""
        return self.new.filter(pa.array(self.has_new))

    def where(self, mask: Mask) -> Pairs:
        """Return the pairs that a mask keeps."""
        chosen = pa.array(mask)
        return Pairs(
            self.old.filter(chosen), self.new.filter(chosen), self.has_old[mask], self.has_new[mask]
        )

    def take(self, at: Positions) -> Pairs:
        """Return the pairs at given positions."""
        chosen = pa.array(at)
        old, new = self.old.take(chosen), self.new.take(chosen)
        return Pairs(old, new, self.has_old[at], self.has_new[at])

    def select(self, names: Sequence[str]) -> Pairs:
        """Return the pairs with selected columns only; some may then have equal rows."""
        chosen = list(names)
        return Pairs(self.old.select(chosen), self.new.select(chosen), self.has_old, self.has_new)

    def present(self) -> Pairs:
        """Return the pairs with at least one existing row."""
        return self.where(self.has_old | self.has_new)

    def without_same_bits(self) -> Pairs:
        """Drop pairs of identical rows: no expression can distinguish them."""
        return self.where(self.differs_by_bits())

    def changed(self) -> Pairs:
        """Drop pairs whose rows are equal by the engine's equality, for rows that leave a plan."""
        return self.where(self.differs())

    def differs(self) -> Mask:
        """Return a mask: the pairs whose rows differ by the engine's equality."""
        return self._unlike(equal_rows(self.old.columns, self.new.columns))

    def differs_by_bits(self) -> Mask:
        """Return a mask: the pairs that an expression may distinguish."""
        return self._unlike(identical_rows(self.old.columns, self.new.columns))

    def _unlike(self, same: Mask) -> Mask:
        return (self.has_old != self.has_new) | (self.has_old & ~same)


def concat(parts: Sequence[RelationRows]) -> RelationRows:
    """Return rows with one schema as one batch."""
    return parts[0] if len(parts) == 1 else pa.concat_batches(list(parts))


def taken(rows: RelationRows, at: Positions) -> RelationRows:
    """Return the rows at given positions; a row of NULLs for `NOWHERE`."""
    fields = [field.with_nullable(True) for field in rows.schema]
    return pa.RecordBatch.from_arrays(values_at(rows.columns, at), schema=pa.schema(fields))


def columns_of(rows: RelationRows, names: Sequence[str]) -> list[pa.Array]:
    """Return columns by their names."""
    return [rows.column(name) for name in names]
