"""What is known about a cell that is not green: by system and row of the table.

A thread is cited where it is about the same thing; where there is none, the page says so.
"""

from __future__ import annotations

_TOMBSTONE = (
    "A statement cannot see the order of a row that is gone. Deletes that are kept as rows help "
    "(the column *Delta, deletes kept as rows*). Upstream: none known, and none of its pages promises "
    "otherwise."
)
_SAME = "The same cause: what comes again or late has a row that was deleted since."

KNOWN: dict[tuple[str, str], str] = {
    **{(each, "deleted"): _TOMBSTONE for each in ("delta_rs", "delta_spark", "iceberg_spark")},
    **{
        (each, row): _SAME
        for each in ("delta_rs", "delta_spark", "iceberg_spark", "ducklake")
        for row in ("replay", "drawn")
    },
    ("hudi_cow", "deleted"): (
        "A delete takes the row out of its file, and a later row is inserted whatever its order: so "
        "described in [apache/hudi#19979](https://github.com/apache/hudi/pull/19979), whose thread "
        "[apache/hudi#19978](https://github.com/apache/hudi/issues/19978) is about how the two kinds "
        "of table differ."
    ),
    **{("hudi_cow", row): _SAME for row in ("replay", "drawn")},
    ("hudi_mor", "deleted"): (
        "A delete in a log file keeps its order, so that late rows behind it lose; one of a key that "
        "the table lacks is not kept. Upstream: none known."
    ),
    ("hudi_mor", "changes"): (
        "The rows are right, and the feed tells of commands that lost as if they had won: of a late "
        "delete, and of rows behind a delete. That log files keep the order of a delete for the rows "
        "is [apache/hudi#4880](https://github.com/apache/hudi/pull/4880). Upstream: none known of "
        "the feed."
    ),
    ("hudi_mor", "drawn"): "The same cause: a delete of a key that the table lacks.",
    ("paimon_spark", "keys"): (
        "The row of another key is gone: NaN and 1.5 count as one key. Upstream: none known."
    ),
    ("paimon_python", "deleted"): (
        "The delete itself is shown as a row where a file holds no other row of its key. The reader in "
        "Java once did the same, [apache/paimon#2586](https://github.com/apache/paimon/pull/2586); "
        "kinds of rows in pypaimon are asked for in "
        "[apache/paimon#6735](https://github.com/apache/paimon/issues/6735)."
    ),
    ("paimon_python", "drawn"): "The same cause: a delete that is shown as a row.",
    ("paimon_spark", "deleted"): (
        "A compaction leaves out deletes, and their order with them; an older row that comes behind "
        "it stands: [apache/paimon#5387](https://github.com/apache/paimon/issues/5387)."
    ),
    ("paimon_spark", "drawn"): "The same cause: deletes that a compaction has left out.",
    ("ducklake", "deleted"): (
        f"{_TOMBSTONE} That deletes need a statement of their own is told in "
        "[duckdb/ducklake#351](https://github.com/duckdb/ducklake/pull/351)."
    ),
}

NOT_TRIED = {
    "AUTO CDC of Spark": (
        "`create_auto_cdc_flow` came with Spark 4.3, and asks for a target of a connector with "
        "`MERGE`. None that was found runs on that Spark; Delta 4.4.0 is refused "
        "([pipelines](compare.md#auto-cdc-and-declarative-pipelines))."
    ),
    "Iceberg, PyIceberg": (
        "`Table.upsert` neither deletes rows nor compares an order, and there is no change feed."
    ),
    "Paimon on Spark, newer than 0.9.0": (
        "Maven found no newer connector; pypaimon stands for what is newer."
    ),
}
"""Systems and releases that are missing, each with the reason."""
