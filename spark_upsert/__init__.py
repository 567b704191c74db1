"""upsertflow without Spark: keyed changes in, a table and its exact changelog out.

>>> from spark_upsert import Table

The names below are the public ones; they are imported when they are first asked for, so that
importing the package costs nothing. It knows pyarrow and numpy, and nothing of Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_upsert._version import __version__
from spark_upsert.table.entries.prepare import RunObserver, register_run_observer
from spark_upsert.table.observers import CommitObserver, register_commit_observer

if TYPE_CHECKING:
    from spark_upsert.errors import UpsertFlowError
    from spark_upsert.feedback import FeedbackUpsert
    from spark_upsert.model.engines import Engine, MergeEngine, Rule
    from spark_upsert.model.schema import ErrorPolicy, Scope, TableSchema, Ties
    from spark_upsert.table.changes.modes import ChangeOptions, Deduplication
    from spark_upsert.table.log.manifest import Commit, Transaction
    from spark_upsert.table.log.tombstones import LateRows
    from spark_upsert.table.table import Table
    from spark_upsert.table.watch import Gap, SealedEpoch

__all__ = [
    "ChangeOptions",
    "Commit",
    "Deduplication",
    "Engine",
    "ErrorPolicy",
    "FeedbackUpsert",
    "Gap",
    "LateRows",
    "MergeEngine",
    "Rule",
    "Scope",
    "SealedEpoch",
    "Table",
    "TableSchema",
    "Ties",
    "Transaction",
    "UpsertFlowError",
    "__version__",
]

_HOMES = {
    "ChangeOptions": "table.changes.modes",
    "Commit": "table.log.manifest",
    "Deduplication": "table.changes.modes",
    "Engine": "model.engines",
    "ErrorPolicy": "model.schema",
    "FeedbackUpsert": "feedback",
    "Gap": "table.watch",
    "LateRows": "table.log.tombstones",
    "MergeEngine": "model.engines",
    "Rule": "model.engines",
    "Scope": "model.schema",
    "SealedEpoch": "table.watch",
    "Table": "table.table",
    "TableSchema": "model.schema",
    "Ties": "model.schema",
    "Transaction": "table.log.manifest",
    "UpsertFlowError": "errors",
}


def _run_observer() -> RunObserver:
    from spark_upsert.mirror import ahead

    return ahead


def _commit_observer() -> CommitObserver:
    from spark_upsert.mirror import follow

    return follow


# Every process that imports a part of the package runs this: Python imports the package first. A
# process without a published table does not load the mirror.
register_run_observer(_run_observer)
register_commit_observer(_commit_observer)

if not TYPE_CHECKING:  # Or any name would pass for one of ours.

    def __getattr__(name: str) -> Any:
        """Import a public name; Python asks here for what the package does not have yet."""
        if name not in _HOMES:
            raise AttributeError(f"module 'spark_upsert' has no attribute '{name}'")
        found = getattr(import_module(f"spark_upsert.{_HOMES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
