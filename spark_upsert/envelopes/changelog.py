"""The ``changelog`` envelope: change rows from our feed or Delta's (docs/envelopes.md).

The order is (``_commit_version``, ``_diff``), within one epoch by default: a delete never removes
the put of its own version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import try_convert
from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.keys import Mask, equal_rows
from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.names import find_columns, has_column
from spark_upsert.core.schema import (
    CHANGE_DIFF,
    CHANGE_TYPE,
    CHANGELOG_FIELDS,
    COMMIT_VERSION,
    Scope,
    TableSchema,
)
from spark_upsert.errors import OptionError, SchemaError, setting
from spark_upsert.options.write import no_aggregate_of_changes
from spark_upsert.table.write.commands import (
    DecodedRows,
    apply_rule,
    rows_as_json,
    to_commands,
    with_skipped,
)
from spark_upsert.table.write.form import order_names, own_order_names
from spark_upsert.table.write.update_rule import WHOLE_ROWS, UpdateRule

_DELETE, _PREIMAGE, _UNKNOWN = 0, 1, -1
_TYPES = ("delete", "update_preimage", "insert", "update_postimage")
"""Change types by number; retractions come first."""

_RETRACTIONS = 2

_HINT = (
    f"write the rows of a change feed as they come: '{CHANGE_TYPE}' is one of {', '.join(_TYPES)}, "
    f"and '{CHANGE_DIFF}', if there is one, -1 for the first two and 1 for the others"
)


@dataclass(frozen=True)
class ChangelogForm:
    """Rows from a change feed.

    Parameters
    ----------
    rows : pyarrow.Schema
        The rows' columns.
    """

    rows: pa.Schema
    others: pa.Schema = pa.schema([])  # noqa: RUF009  # Immutable.
    keys: tuple[str, ...] = ()
    scope: Scope = Scope.EPOCH

    def __post_init__(self) -> None:
        if CHANGE_TYPE not in self.rows.names:
            raise SchemaError(
                f"rows of a change feed have the column '{CHANGE_TYPE}', found "
                f"{', '.join(self.rows.names) or 'none'}.",
                hint=f"read a table with {setting('readChangeFeed', 'true')} and keep "
                f"'{CHANGE_TYPE}'; rows that are no changes are written without 'envelope'.",
                column=CHANGE_TYPE,
            )
        for name, is_right, kind in (
            (CHANGE_TYPE, pa.types.is_string, "text"),
            (COMMIT_VERSION, pa.types.is_integer, "an integer"),
            (CHANGE_DIFF, pa.types.is_integer, "an integer"),
        ):
            if has_column(self.rows, name) and not is_right(self.rows.field(name).type):
                raise SchemaError(
                    f"the column '{name}' of a change feed must be {kind}, found "
                    f"{self.rows.field(name).type}.",
                    hint="write the rows of a change feed as they come.",
                    column=name,
                )

    @property
    def refused(self) -> Mapping[str, SchemaError]:
        """Always empty, as for plain rows."""
        return {}

    @cached_property
    def columns(self) -> pa.Schema:
        """All columns except the change feed's own."""
        ours = {field.name for field in CHANGELOG_FIELDS}
        return pa.schema([field for field in self.rows if field.name not in ours])

    @cached_property
    def orders(self) -> pa.Schema:
        """All columns, plus `CHANGE_DIFF` if the rows lack it."""
        fields = [field for field in self.rows if field.name != CHANGE_DIFF]
        return pa.schema([*fields, pa.field(CHANGE_DIFF, pa.int32())])

    def ordered_by(self, named: Sequence[str]) -> tuple[str, ...]:
        """Return the order's column names, with the diff directly after the version."""
        names = tuple(named) or ((COMMIT_VERSION,) if COMMIT_VERSION in self.rows.names else ())
        if not names:
            raise OptionError.missing(
                "sequenceBy",
                f"the rows have no '{COMMIT_VERSION}', and changes of a key have an order",
            )
        lower = [name.lower() for name in names]
        if COMMIT_VERSION not in lower or CHANGE_DIFF in lower:
            return names
        after_version = lower.index(COMMIT_VERSION) + 1
        return (*names[:after_version], CHANGE_DIFF, *names[after_version:])

    def require_keys(self, keys: Sequence[str]) -> None:
        """Raise `SchemaError` if the rows lack a key column."""
        find_columns(keys, self.columns.names, role="key column")

    def envelope(
        self, schema: TableSchema, columns: pa.Schema, rule: UpdateRule = WHOLE_ROWS
    ) -> ChangelogEnvelope:
        """Return the envelope for a table."""
        own_names = find_columns(columns.names, schema.columns.names, role="column")
        sources = dict(zip(own_names, columns.names, strict=True))
        return ChangelogEnvelope(
            schema=schema,
            sources=sources,
            order=order_names(schema, self.orders),
            own_order=own_order_names(schema, self.orders, sources),
            has_diff=CHANGE_DIFF in self.rows.names,
            rule=rule,
        )


@dataclass(frozen=True, kw_only=True)
class ChangelogEnvelope:
    """Converts change rows into commands, one each, except preimages replaced by their postimage.

    Other preimages are deletes: the update changed the key. With ``first-row`` and
    ``partial-update``, preimages have no command.
    """

    schema: TableSchema
    sources: dict[str, str]
    """The rows' column name for each table column in them."""
    order: tuple[str, ...]
    own_order: Mapping[str, str]
    """The rows' order column for each table column with its own order."""
    has_diff: bool
    takes_null_keys: bool = False
    """Whether the table materializes a view, where a group key may be NULL."""
    rule: UpdateRule = WHOLE_ROWS

    def __post_init__(self) -> None:
        if self.schema.engine.kind is Engine.AGGREGATION:
            raise no_aggregate_of_changes()
        if not self.order:
            raise OptionError.invalid(
                "envelope",
                "changelog",
                "'upsert' in a table without an order, where of two changes of a key any could win",
                hint=f"write into a new table, whose order is then {COMMIT_VERSION}, or one with "
                f"an order of its own, {setting('sequenceBy')}.",
            )

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch's commands, in row order (`Envelope.commands`)."""
        types = pc.index_in(batch.column(CHANGE_TYPE), value_set=pa.array(_TYPES))
        kinds = np.asarray(types.fill_null(_UNKNOWN))
        diffs = np.where((kinds >= 0) & (kinds < _RETRACTIONS), -1, 1).astype(np.int32)
        reasons = self._reasons(batch, kinds, diffs)
        is_bad = np.asarray(reasons.is_valid().to_numpy(zero_copy_only=False))
        row_indices = np.flatnonzero(~self._replaced(batch, kinds) | is_bad)
        skipped = batch.num_rows - len(row_indices)
        if len(row_indices) < batch.num_rows:
            batch, reasons = batch.take(pa.array(row_indices)), reasons.take(pa.array(row_indices))
            kinds, diffs, is_bad = kinds[row_indices], diffs[row_indices], is_bad[row_indices]

        def column(name: str) -> pa.Array:
            return pa.array(diffs) if name == CHANGE_DIFF else batch.column(name)

        decoded = DecodedRows(
            columns={own_name: batch.column(name) for own_name, name in self.sources.items()},
            order=[column(name) for name in self.order],
            own_order={own_name: column(name) for own_name, name in self.own_order.items()},
            tombstones=np.isin(kinds, (_DELETE, _PREIMAGE)) & ~is_bad,
            bad_values=reasons if is_bad.any() else None,
            raw_values=lambda rows: rows_as_json(batch, rows),
            takes_null_keys=self.takes_null_keys,
            hint=_HINT,
        )
        lists = self.rule.list_column
        decoded = apply_rule(
            self.schema, decoded, self.rule, None if lists is None else batch.column(lists)
        )
        return with_skipped(to_commands(self.schema, decoded), skipped)

    def _replaced(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int32]) -> Mask:
        """Return the preimages replaced by a postimage with their key: these are not deletes.

        A postimage replaces preimages with its version, in any row order. Rows without a version
        are in change order: there it follows the preimage.
        """
        is_preimage: Mask = kinds == _PREIMAGE
        if self.schema.engine.kind is not Engine.DEDUPLICATE or not is_preimage.any():
            return is_preimage
        columns = [
            try_convert(batch.column(self.sources[key]), self.schema.columns.field(key).type)[0]
            for key in self.schema.keys
        ]
        rank: npt.NDArray[np.int64] = np.arange(batch.num_rows)
        if COMMIT_VERSION in batch.schema.names:
            columns.append(batch.column(COMMIT_VERSION))
            rank = kinds.astype(np.int64)
        replaced = _followed_by_puts(columns, kinds, np.arange(batch.num_rows))
        if not np.array_equal(replaced, is_preimage):
            by_key = np.lexsort((rank, hash_keys(columns, seed=0)))
            replaced |= _followed_by_puts(columns, kinds, by_key)
        return replaced

    def _reasons(
        self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int32], diffs: npt.NDArray[np.int32]
    ) -> pa.Array:
        """Return why rows are invalid changes, as text; null for valid ones."""
        change_types = batch.column(CHANGE_TYPE)
        named = pc.binary_join_element_wise("'", change_types, "' is no change", "")
        unknown = pc.coalesce(named, pa.scalar(f"'{CHANGE_TYPE}' is null"))
        nothing = pa.scalar(None, pa.string())
        reasons = pc.if_else(pa.array(kinds == _UNKNOWN), unknown, nothing)
        if not self.has_diff:
            return reasons
        is_other = pc.not_equal(batch.column(CHANGE_DIFF), pa.array(diffs)).fill_null(True)
        diff_texts = pc.coalesce(batch.column(CHANGE_DIFF).cast(pa.string()), pa.scalar("null"))
        mismatch = pc.binary_join_element_wise(
            f"'{CHANGE_DIFF}' is ", diff_texts, " in a row of '", change_types, "'", ""
        )
        return pc.coalesce(reasons, pc.if_else(is_other, mismatch, nothing))


def _followed_by_puts(
    columns: Sequence[pa.Array], kinds: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]
) -> Mask:
    """Return the preimages followed directly by a put with equal columns, in a row order."""
    first, second = rows[:-1], rows[1:]
    is_pair = (kinds[first] == _PREIMAGE) & (kinds[second] >= _RETRACTIONS)
    first, second = first[is_pair], second[is_pair]
    same = equal_rows(
        *([column.take(pa.array(at)) for column in columns] for at in (first, second))
    )
    result = np.zeros(len(rows), dtype=np.bool_)
    result[first[same]] = True
    return result
