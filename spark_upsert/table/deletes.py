"""The deletes of rows that are there, as rows of an append: by keys alone, whatever orders a table.

A delete has the order of the row that it deletes, over which it wins as the later of two equals
(`Ties.LAST`). So a row of a later order that another writer brings meanwhile stays. An order that
is equal on purpose is no tie (`table.write.commands.are_by_keys`).
"""

from __future__ import annotations

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.model.schema import Scope, TableSchema, Ties
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.write.commands import GONE


def deletes_of(snapshot: Snapshot, keys: pa.RecordBatch) -> pa.Table:
    """Return a delete for each row that some keys have at a version; keys without one have none.

    Parameters
    ----------
    snapshot : Snapshot
    keys : pyarrow.RecordBatch
        The key columns, in the order of the key.

    Returns
    -------
    pyarrow.Table
        The columns of the key and the order, and `GONE`. No others: until the deletes are applied,
        another writer may drop a column or add one.

    Raises
    ------
    OptionError
        Of two equal orders the table takes the earlier one, or none.
    """
    schema = snapshot.manifest.schema
    require_deletes_win(schema)
    found = snapshot.look_up(keys.columns, [*schema.keys, *schema.order_columns]).rows
    arrays = {name: found.column(name) for name in schema.keys}
    stored = schema.order_columns[len(schema.order_columns) - len(schema.order) :]
    orders = {field.name: name for field, name in zip(schema.order, stored, strict=True)}
    arrays |= {name: found.column(of) for name, of in orders.items() if name not in arrays}
    arrays[GONE] = pa.repeat(pa.scalar(True), found.num_rows)
    return pa.table(arrays)


def columns_of_deletes(schema: TableSchema) -> pa.Schema:
    """Return the columns of `deletes_of`, and raise what it does."""
    require_deletes_win(schema)
    fields = [schema.columns.field(name) for name in schema.keys]
    fields += [field for field in schema.order if field.name not in schema.keys]
    return pa.schema([*fields, pa.field(GONE, pa.bool_())])


def require_deletes_win(schema: TableSchema) -> None:
    """Refuse a table in which no delete wins over a row of the same order."""
    if not schema.order or schema.scope is not Scope.TABLE or schema.ties is Ties.LAST:
        return
    raise OptionError(
        f"the table has ties={schema.ties.value}, so that no delete of the same order as its row "
        "wins over it.",
        hint="append the deletes with an order of their own: append(rows, deletes=...).",
        option="ties",
    )
