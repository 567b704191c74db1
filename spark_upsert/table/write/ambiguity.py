"""Rows with a doubtful place in time: their errors and warnings.

- *unordered*: without order keys, two tasks hold different values of one key;
- *tied*: two commands of a key have equal order keys and different contents (`Ties`);
- *late*: the key is unknown and the order key so old that a delete may be forgotten
  (`table.log.tombstones.LateRows`);
- *stale* as an epoch: no row took effect, as after the order of a source has restarted.

None of them is silent: where a policy goes on, the commit counts them, and one warning per
epoch and kind names a key.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import numpy as np

from spark_upsert.errors import DataError, setting
from spark_upsert.model.arrays import Positions
from spark_upsert.model.bounded import LruMap
from spark_upsert.model.precedence import Precedence
from spark_upsert.model.schema import DIFF, PUT, TableSchema, Ties
from spark_upsert.model.words import compare
from spark_upsert.table.entries.content import equal_contents, have_reasons
from spark_upsert.table.entries.counters import STALE_MIN, Counters, count_all_stale
from spark_upsert.table.entries.mechanism import Reduced
from spark_upsert.table.log.manifest import Commit, Manifest
from spark_upsert.table.log.tombstones import LateRows, decode_mark
from spark_upsert.table.run.rows import Rows
from spark_upsert.table.write.outcomes import Outcomes

Examples = Mapping[str, str]
"""Examples by counter (``tied``, ``late``): the key of one such row."""

_LOGGER = logging.getLogger(__name__)


def key_text(rows: Rows, row: int) -> str:
    """Return the key of a row for a message: ``id=7``."""
    keys = rows.schema.keys
    values = rows.take(keys, np.array([row]))
    return ", ".join(f"{k}={v[0].as_py()!r}" for k, v in zip(keys, values, strict=True))


def count_losers(rows: Rows, reduced: Reduced) -> tuple[Counters, Examples]:
    """Count beaten commands: equal to their winner, tied with it, or plainly superseded.

    Those that were folded into others are superseded, too.

    Raises
    ------
    DataError
        Two are tied, and the table has `Ties.FAIL`.
    """
    losers, winners = reduced.losers, reduced.beaten_by
    precedence = Precedence.of(rows.schema)
    if not (len(losers) and precedence.has_order):
        return Counters(superseded=len(losers) + reduced.folded), {}
    names = rows.schema.order_columns
    equals = precedence.equals(
        compare(rows.take(names, losers), rows.take(names, winners)),
        lambda equal: equal_contents(rows, losers[equal], rows, winners[equal]),
        lambda other: have_reasons(rows, losers[other], rows, winners[other]),
    )
    duplicates = int(equals.are_duplicates.sum())
    tied = losers[equals.are_tied]
    counters = Counters(superseded=len(losers) - duplicates, duplicates=duplicates, tied=len(tied))
    return counters, _tied_examples(rows, tied)


def examples_of(rows: Rows, chosen: Positions, outcomes: Outcomes, late_rows: LateRows) -> Examples:
    """Return keys of tied and late commands, one per kind.

    Raises
    ------
    DataError
        There is one, and a policy is that the write fails then.
    """
    examples = dict(_tied_examples(rows, chosen[outcomes.are_tied]))
    late = chosen[outcomes.are_late]
    if len(late):
        late = late[rows.take([DIFF], late)[0].to_numpy() == PUT]
    if len(late):
        if late_rows is LateRows.FAIL:
            raise _late_error(rows, late)
        examples["late"] = key_text(rows, int(late[0]))
    return examples


def _tied_examples(rows: Rows, tied: Positions) -> Examples:
    if not len(tied):
        return {}
    key = key_text(rows, int(tied[0]))
    if rows.schema.ties is Ties.FAIL:
        raise DataError(
            f"{len(tied)} rows have the order key of another row of their key but other values, "
            f"and nothing says which is the later one (for example {key}). Nothing was committed.",
            hint=f"order by more columns, so that {_order(rows.schema)} and they are never equal "
            "for two changes of a key (for a database's log its position, then the place within "
            f"the transaction); or write into a table with {setting('ties', 'last')}.",
            example=key,
        )
    return {"tied": key}


def _late_error(rows: Rows, late: Positions) -> DataError:
    key = key_text(rows, int(late[0]))
    return DataError(
        f"{len(late)} rows are late (for example {key}): the table does "
        f"not know their keys, and their order keys ({_order(rows.schema)}) are at or below its "
        "low-water mark, up to which deletes are forgotten. So they may have been deleted since. "
        "Nothing was committed.",
        hint="if none of them was, as in a backfill of what never was here, give "
        f"{setting('lateRows', 'apply')}; {setting('lateRows', 'reject')} leaves them out and "
        "counts them. Deletes are remembered for longer with a longer 'tombstoneRetention'.",
        example=key,
    )


def _order(schema: TableSchema) -> str:
    return "sequenceBy=" + ",".join(field.name for field in schema.order)


def mark_text(schema: TableSchema, mark: str) -> str:
    """Return a low-water mark for a message: ``seq=5``."""
    values = decode_mark(mark, schema)[-len(schema.order) :]
    pairs = zip(schema.order, values, strict=True)
    return ", ".join(f"{field.name}={value[0].as_py()!r}" for field, value in pairs)


def warn(commit: Commit, head: Manifest, examples: Examples) -> None:
    """Log what a person should know about an epoch, once per kind.

    Parameters
    ----------
    commit : Commit
    head : Manifest
        The table before it.
    examples : mapping of str to str
    """
    schema = head.schema
    counters = Counters.from_json(commit.counters)
    _warn_of_stale(commit, head, counters)
    if counters.tied:
        taken = "earlier" if schema.ties is Ties.FIRST else "later"
        _LOGGER.warning(
            "version %d: %d rows are tied: another row of their key has the same %s and other "
            "values (for example %s); the %s one was taken. A total order tells them apart.",
            commit.version,
            counters.tied,
            _order(schema),
            examples.get("tied", "?"),
            taken,
        )
    if "late" in examples:
        done = "applied" if counters.late else "left out"
        # Where the past was replaced meanwhile, the mark that they were judged by is gone.
        mark = f" up to {mark_text(schema, head.low_water)}" if head.low_water else ""
        _LOGGER.warning(
            "version %d: %d rows were %s (lateRows): the table does not know their keys, and "
            "deletes so old are forgotten%s (for example %s).",
            commit.version,
            counters.late or counters.rejected,
            done,
            mark,
            examples["late"],
        )


_STREAKS: LruMap[str, int] = LruMap(1024)
"""Epochs in a row whose rows were all stale, by table, as far as this process committed them."""

_STREAKS_LOCK = threading.Lock()


def _warn_of_stale(commit: Commit, head: Manifest, counters: Counters) -> None:
    """Log that all rows of an epoch were stale, if they or such epochs are many (`STALE_MIN`)."""
    stale = count_all_stale(counters, head.schema)
    with _STREAKS_LOCK:
        epochs = (_STREAKS.get(head.table_id) or 0) + 1 if stale else 0
        if epochs:
            _STREAKS.put(head.table_id, epochs)
        else:
            _STREAKS.pop(head.table_id)
    if max(epochs, stale) >= STALE_MIN:
        _LOGGER.warning(
            "version %d: all %d rows are stale, and nothing was applied, in %d epochs in a row: "
            "their %s is below that of the rows in the table. A replay catches up by itself. If "
            "the order of the source has restarted, as after a database was restored, take a new "
            "snapshot into a new table.",
            commit.version,
            stale,
            epochs,
            _order(head.schema),
        )


def require_order(rows: Rows, reduced: Reduced) -> None:
    """Refuse two different commands of one key when nothing orders their tasks.

    Two deletes of one key are no choice, nor are two error entries: either says what is wrong.

    Raises
    ------
    DataError
        There is such a key.
    """
    if Precedence.of(rows.schema).has_order or not len(reduced.losers):
        return
    equal = equal_contents(rows, reduced.losers, rows, reduced.beaten_by)
    lost, won = (
        rows.take([DIFF], side)[0].to_numpy() for side in (reduced.losers, reduced.beaten_by)
    )
    equal |= (lost == won) & (lost != PUT)
    if bool(equal.all()):
        return
    key = key_text(rows, int(reduced.losers[~equal][0]))
    raise DataError(
        f"{int((~equal).sum())} keys have different values in several tasks of one epoch, and "
        f"nothing says which is the later one (for example {key}). Nothing was committed.",
        hint=f"give an order, {setting('sequenceBy')}, or repartition the rows by key before the "
        f"write, or accept any of them by {setting('allowUnordered', 'true')}.",
        example=key,
    )
