"""The ``MERGE`` that applies commands by key, as the peers that have one are told to use it.

Delta's documentation ("Write change data into a Delta table") merges the newest command of each key,
deletes by a first clause, and so does Iceberg's example. This one compares the order
with that of the row as well, so that late rows lose; keys are compared so that nulls are equal.
What no statement can do is to remember the order of a row that is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from changelog_conformance.histories import GONE


def merge_statement(
    target: str,
    source: str,
    *,
    columns: Iterable[str],
    keys: Sequence[str],
    order: str,
) -> str:
    """Return the statement; ``source`` has the newest command of each key, with ``gone``."""
    names = list(columns)
    same = " AND ".join(f"t.{name} <=> s.{name}" for name in keys)
    return (
        f"MERGE INTO {target} t USING {source} s ON {same} "
        f"WHEN MATCHED AND s.{order} > t.{order} AND s.{GONE} THEN DELETE "
        f"WHEN MATCHED AND s.{order} > t.{order} "
        f"THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in names)} "
        f"WHEN NOT MATCHED AND NOT s.{GONE} THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.{name}' for name in names)})"
    )
