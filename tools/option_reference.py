"""Write `docs/options.md` from the options' declarations in `spark_upsert.options`.

Run ``make pages`` after changing an option; a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_upsert.options.declare import Option
from spark_upsert.options.inputs import INPUT_OPTIONS
from spark_upsert.options.read import READ_OPTIONS
from spark_upsert.options.routed import ROUTED_OPTIONS
from spark_upsert.options.write import WRITE_OPTIONS

SCOPES = {
    "writes": WRITE_OPTIONS,
    "routed": ROUTED_OPTIONS,
    "reads": READ_OPTIONS,
    "inputs": INPUT_OPTIONS,
}
"""The declarations by name, per scope: writes to one table, writes to many tables, reads of one
table or view, and reads of several inputs."""

TARGET = Path(__file__).parent.parent / "docs" / "options.md"

_HEAD = """# Options

This page is made from the declarations in `spark_upsert/options/` by `tools/option_reference.py`.

Names are matched without case, `-` and `_`: `starting_version` is `startingVersion`. An unknown name is an error that says
the nearest one. Options that begin with `storage.` go to the object store, see [object-stores.md](object-stores.md).

## When an option changes

A streaming query that starts again from its checkpoint may be given other options. The last column of each table says when a
change takes effect ([why](adr/0021-stream-offsets.md)):

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
([why](adr/0014-reads-in-spark.md)): with it there are the table's and those of the changelog; without it a batch
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

_SQL = """
## In SQL

Names in Spark's catalog, temporary views, save modes, and which version each of them shows: [sql.md](sql.md). What Spark itself
adds to the options (the name of a query, provider, location, owner and comment of a table) is passed over. `TBLPROPERTIES` it
mixes with the options, unless the columns are listed.
"""


def reference() -> str:
    """Return the whole page."""
    heads = {
        "writes": _WRITES,
        "routed": _ROUTED,
        "reads": _READS,
        "inputs": _INPUTS,
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
