"""The new values alone: changes for a reader that cannot take a row back.

The reader gets the row that an insert brings and the row that an update leaves, in the order of the
epochs. A delete has no new value: a consumer that keeps what was delivered would keep the row. So
it is an error, unless the reader says that this is meant. A row that an overwrite leaves out, or
that a quarantined row of its key takes away, is a delete like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import OptionError, setting
from spark_upsert.model.names import has_column
from spark_upsert.model.schema import CHANGE_DIFF, CHANGE_TYPE, COMMIT_VERSION
from spark_upsert.table.changes.render import CHANGE_NAMES, DELETE


class WantedValues(Protocol):
    """What a reader of new values says of changes that are none (the options of a read)."""

    @property
    def ignore_deletes(self) -> bool:
        """Whether deletes are left out."""
        ...


def new_values(
    changes: Iterable[pa.RecordBatch], wanted: WantedValues, *, keys: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Keep the rows of changes that a table gained.

    Parameters
    ----------
    changes : iterable of pyarrow.RecordBatch
        Changes, with updates shown as pairs.
    wanted : WantedValues
    keys : sequence of str
        The table's keys, for the text of the error.

    Raises
    ------
    OptionError
        There is a delete. No row of its batch has been yielded.
    """
    for batch in changes:
        if not wanted.ignore_deletes:
            _refuse_deletes(batch, keys)
        yield batch.filter(pc.equal(batch.column(CHANGE_DIFF), 1))


def _refuse_deletes(batch: pa.RecordBatch, keys: Sequence[str]) -> None:
    found = pc.index(batch.column(CHANGE_TYPE), CHANGE_NAMES[DELETE]).as_py()
    if found < 0:
        return
    row = {
        name: batch.column(name)[found].as_py()
        for name in (COMMIT_VERSION, *keys)
        if has_column(batch.schema, name)
    }
    version = row.pop(COMMIT_VERSION)
    key = ", ".join(f"{name}={value!r}" for name, value in row.items())
    raise OptionError(
        f"version {version} deletes a row{f' ({key})' if key else ''}, and this stream delivers "
        "new values only, which cannot say so.",
        hint=f"do one of two: (1) {setting('readChangeFeed', 'true')} delivers deletes and old "
        "values, too, with the columns '_change_type' and '_diff'; (2) "
        f"{setting('ignoreDeletes', 'true')} leaves deletes out, so that what you make of this "
        "stream keeps rows that the table has no more.",
        version=version,
    )
