"""Write `docs/options.md` from the options' declarations, `spark_upsert.options.scopes`.

Run ``make pages`` after changing an option; a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_upsert.options.declared import Option
from spark_upsert.options.scopes import SCOPES

TARGET = Path(__file__).parent.parent / "docs" / "options.md"

_HEAD = """# Options

This page is made from the declarations in `spark_upsert/options/` by `tools/option_reference.py`.

Names are matched without case, `-` and `_`: `starting_version` is `startingVersion`. An unknown name is an error that says
the nearest one. Options that begin with `storage.` go to the object store, see [object-stores.md](object-stores.md).

## When an option changes

A streaming query that starts again from its checkpoint may be given other options. The last column of each table says when a
change takes effect ([why](adr/0053-what-decides-rows-stands-in-the-checkpoint.md)):

- **at once; the same rows**: limits, pace and ways of reaching things. No row depends on it.
- **next batch**: rows that were delivered stay what they were. A batch that was planned when the query stopped is delivered by the new
  options, too.
- **inputs that have not begun**: where a query stands in an input stands in the checkpoint, above all options.
- **refused**: rows would come twice, never, or in another order. The error says how the option was. A new `checkpointLocation` is a new query,
  which begins anew; so let what it feeds begin anew, too.
- **-**: the option is of batches alone.

An exact order (`merge`, `interleaveSeed`) counts the rows of each epoch, so that it refuses all that decides how many there are.
"""

_READS = """
## Reads

Batch (`spark.read`) and stream (`spark.readStream`). `readChangeFeed` alone decides about the columns
([why](adr/0014-a-stream-without-an-option-delivers-new-values.md)): with it there are the table's and those of the changelog; without it a batch
reads the rows of a version, and a stream delivers the table and then new values, until it meets a delete, at which it stops.
"""

_INPUTS = """
### Reads of several inputs

One query, batch or stream, over several tables: [many-tables.md](many-tables.md).
"""

_WRITES = """
## Writes

Batch (`df.write`, modes `append` and `overwrite`) and stream (`df.writeStream`, output modes `append` and `complete`). Spark
refuses output mode `update` for Python sinks: write the aggregation in `complete` mode, or by `foreachBatch` with
`txnAppId` and `txnVersion`.
"""

_ROUTED = """
### Writes into many tables

With columns in braces in `path`, each row goes to the table of its values: [routed.md](routed.md). All options above may be given, too; `txnAppId`,
`txnVersion`, `allowMissingBatches`, `checkpointLocation` and `storage.*` are of the whole write.
"""

_FILES = """
### Files

Of an input that is a growing set of files: Parquet, Arrow, JSON (an object in each line) or CSV.
"""

_SQL = """
## In SQL

Spark hands none of a catalog table's options over: `SELECT`, `INSERT`, `saveAsTable` and `toTable` on it do not know its
path, and say so. What works:

```sql
SELECT * FROM a_catalog_table WITH (path='/lake/orders');
INSERT INTO a_catalog_table WITH (path='/lake/orders') VALUES (1, 'a');
CREATE TEMPORARY VIEW orders AS SELECT * FROM a_catalog_table WITH (path='/lake/orders');
CREATE TEMPORARY VIEW orders_then USING upsertflow OPTIONS (path '/lake/orders');
```

and `spark.read.option("path", "/lake/orders").table("a_catalog_table")`. What Spark itself adds (the name of a query, provider,
location, owner and comment of a table) is passed over. `TBLPROPERTIES` it mixes with the options, unless the columns are listed.

### Which version is read

Without `versionAsOf` or `timestampAsOf` a batch reads the newest version as of when Spark plans the read. Spark plans it *once for each relation*, keeps what it was told, and cannot be told otherwise:

| what is used | shows | `INSERT INTO` it |
|---|---|---|
| a catalog table, `WITH (path=...)` | the newest version, in each statement | with `WITH`, too |
| a view by its text (`AS SELECT ... WITH (path=...)`), temporary or not | the newest version, at each use | no view by its text can be |
| `spark.read.option("path", ...).table("a_catalog_table").createOrReplaceTempView("orders")` | the newest version, at each use | yes |
| a `DataFrame`, and what is derived from it | the newest version as of its *first* use, as long as it lives | |
| `CREATE TEMPORARY VIEW ... USING upsertflow` | the same; `REFRESH TABLE` changes nothing, `CREATE OR REPLACE` does | yes, and does not show it |

All uses of one relation in one statement, such as the two sides of a self-join, show one version. To read anew with a `DataFrame`, call `load` again. Through Spark Connect the same holds, but that a `DataFrame` is planned at each use, and shows the newest version, once the server's cache of plans is off: `spark.conf.set("spark.connect.session.planCache.enabled", "false")`. Temporary views stay as they are there, too. [ADR 54](adr/0054-a-relation-of-spark-shows-one-version.md) says why.
"""


def reference() -> str:
    """Return the whole page."""
    heads = {
        "writes": _WRITES,
        "routed": _ROUTED,
        "reads": _READS,
        "inputs": _INPUTS,
        "files": _FILES,
    }
    return _HEAD + "".join(heads[scope] + _table(each) for scope, each in SCOPES.items()) + _SQL


def _table(options: Mapping[str, Option[Any]]) -> str:
    lines = ["", "| option | meaning | when it changes |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {option.meaning.replace('|', '&#124;')} | {option.life} |"
        for name, option in options.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(reference())
