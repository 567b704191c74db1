"""Flattened change events: rows of Debezium's ``ExtractNewRecordState`` (docs/envelopes.md).

``__deleted`` or ``__op`` marks a delete; null means a row, any other text is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import readable
from spark_upsert.core.keys import Mask
from spark_upsert.core.schema import DELETED_FIELD, TableSchema, storage_type, unread_deletes
from spark_upsert.payloads.placeholders import (
    DEFAULT_PLACEHOLDER,
    UNSENT_HINT,
    Placeholder,
    apply_unsent,
)

_OP = "__op"

_DELETES, _ROWS = ("true", "d"), ("false", "c", "r", "u")


def require_delete_mark(names: Iterable[str], deletes: str | None) -> None:
    """Refuse rows whose deletes no option reads."""
    if deletes is None and DELETED_FIELD in names:
        raise unread_deletes()


@dataclass(frozen=True)
class FlattenedReader:
    """Reads the deletes and the unsent values of rows. Travels to the tasks by pickle.

    Parameters
    ----------
    mark : str or None
        The column that marks deletes, for messages.
    placeholder : Placeholder or None
        None: values are what they are.
    """

    mark: str | None
    placeholder: Placeholder | None

    @classmethod
    def of_rows(
        cls, rows: pa.Schema, deletes: str | None, placeholder: Placeholder | None
    ) -> FlattenedReader | None:
        """Return the reader of plain rows; None if nothing says that they are flattened events."""
        if placeholder is None and deletes in (DELETED_FIELD, _OP):
            placeholder = DEFAULT_PLACEHOLDER
        names = {name.lower(): name for name in rows.names}
        mark = names.get((deletes or "").lower())
        is_text = mark is not None and pa.types.is_string(storage_type(rows.field(mark).type))
        return cls(mark, placeholder) if is_text or placeholder is not None else None

    @property
    def hint(self) -> str:
        """The hint about rows that cannot be applied."""
        usual = "correct what writes the values, or their declared format"
        return usual if self.placeholder is None else f"{usual}; {UNSENT_HINT}"

    def read(
        self,
        schema: TableSchema,
        columns: Mapping[str, pa.Array],
        marks: pa.Array | None,
        unsent: Mapping[str, Mask] | None = None,
    ) -> tuple[dict[str, pa.Array], Mask | None, pa.Array | None]:
        """Return columns, which rows are deletes, and why rows cannot be applied."""
        row_columns, reasons = dict(columns), None
        if self.placeholder is not None:
            masks = {name: self.placeholder.find(column) for name, column in columns.items()}
            for name, where in (unsent or {}).items():
                masks[name] = masks[name] | where
            row_columns, reasons = apply_unsent(schema, columns, masks, {})
        if marks is None:
            return row_columns, None, reasons
        values = readable(marks)[0]
        is_flag = pa.types.is_boolean(values.type)
        deletes = values if is_flag else pc.is_in(values, pa.array(_DELETES))
        is_delete = np.asarray(deletes.fill_null(False).to_numpy(zero_copy_only=False))
        unknown = self._unknown_marks(values)
        if unknown is not None:
            reasons = unknown if reasons is None else pc.coalesce(unknown, reasons)
        return row_columns, is_delete, reasons

    def _unknown_marks(self, marks: pa.Array) -> pa.Array | None:
        if pa.types.is_boolean(marks.type):
            return None
        is_known = pc.is_in(marks, pa.array([*_DELETES, *_ROWS, None], pa.string()))
        if pc.all(is_known, min_count=0).as_py():
            return None
        expected = f", expected one of {', '.join((*_DELETES, *_ROWS))}"
        why = pc.binary_join_element_wise(
            f"the applyAsDeletes column '{self.mark}' is '", marks, f"'{expected}", ""
        )
        return pc.if_else(is_known, pa.scalar(None, pa.string()), why)
