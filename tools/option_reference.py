"""Write `docs/options.md` from the options' declarations in `spark_upsert.options`.

Run ``make pages`` after changing an option; a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_upsert.options.declare import Option
from spark_upsert.options.inputs import INPUT_OPTIONS
from spark_upsert.options.postgres import POSTGRES_OPTIONS
from spark_upsert.options.read import READ_OPTIONS
from spark_upsert.options.routed import ROUTED_OPTIONS
from spark_upsert.options.write import WRITE_OPTIONS

SCOPES = {
    "writes": WRITE_OPTIONS,
    "routed": ROUTED_OPTIONS,
    "reads": READ_OPTIONS,
    "inputs": INPUT_OPTIONS,
    "postgres": POSTGRES_OPTIONS,
}
"""The declarations by name, per scope: writes to one table, writes to many tables, reads of one
table or view, reads of several inputs, and streams from PostgreSQL."""

TARGET = Path(__file__).parent.parent / "docs" / "options.md"

_HEAD = """# Options

`tools/option_reference.py` generates this page from the declarations in `spark_upsert/options/`.

Case, `-` and `_` in names are ignored: `starting_version` is `startingVersion`. An unknown name is an error that suggests the
nearest one. Options with the prefix `storage.` configure the object store: [object-stores.md](object-stores.md).

## When an option changes

You can restart a streaming query from its checkpoint with different options. The last column of each table says when the
change takes effect ([why](adr/0021-stream-offsets.md)):

- **immediately; same rows**: limits, rates and access settings. They do not affect the rows.
- **next batch**: rows that were already delivered do not change. A batch that was planned before the restart uses the new
  options, too.
- **inputs not started yet**: the position of a started input comes from the checkpoint, which takes precedence over all options.
- **refused**: the change would duplicate, lose or reorder rows. The error names the old value. To change the option, start a new
  query with a new `checkpointLocation`, and rebuild its sink.
- **-**: the option applies to batches only.

An exact order (`merge`, `interleaveSeed`) depends on the row count of each epoch, so changes to options that affect it are refused.
"""

_READS = """
## Reads

Batch (`spark.read`) and stream (`spark.readStream`). `readChangeFeed` determines the columns
([why](adr/0014-reads-in-spark.md)). With it, a read returns the table's columns and the changelog's. Without it, a batch
returns the rows of a version; a stream returns the table and then new values, and fails at the first delete.
"""

_INPUTS = """
### Reads of several inputs

One query, batch or stream, reads several tables: [many-tables.md](many-tables.md).
"""

_WRITES = """
## Writes

Batch (`df.write`, modes `append` and `overwrite`) and stream (`df.writeStream`, output modes `append` and `complete`). Spark
does not support output mode `update` for Python sinks: write the aggregation in `complete` mode, or use `foreachBatch` with
`txnAppId` and `txnVersion`.
"""

_ROUTED = """
### Writes into many tables

If `path` has column names in braces, each row goes to the table for its values: [routed.md](routed.md). You can set all options
above except `operation` and `deferred`; `txnAppId`, `txnVersion`, `allowMissingBatches`, `checkpointLocation` and `storage.*`
apply to the complete write.
"""

_POSTGRES = """
## Streams from PostgreSQL

`spark.readStream.format("upsertflow.postgres")`, written into many tables with `envelope=postgres`:
[postgresql.md](postgresql.md#with-spark).
"""

_SQL = """
## In SQL

See [sql.md](sql.md) for names in Spark's catalog, temporary views, save modes, and the version each of them reads. Options that
Spark adds itself (query name, provider, location, owner and table comment) are ignored. Spark mixes `TBLPROPERTIES` with the
options, unless the columns are listed.
"""


def reference() -> str:
    """Return the whole page."""
    heads = {
        "writes": _WRITES,
        "routed": _ROUTED,
        "reads": _READS,
        "inputs": _INPUTS,
        "postgres": _POSTGRES,
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
