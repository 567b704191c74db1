"""upsertflow without Spark: keyed changes in, a table and its exact changelog out.

>>> from spark_upsert import Table

The public names are imported on first access, so that importing the package costs nothing. It needs
pyarrow and numpy, and never imports Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_upsert._version import __version__
from spark_upsert.table.observers import CommitObserver, register_commit_observer
from spark_upsert.table.state.observer import RunObserver, register_run_observer

if TYPE_CHECKING:
    from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
    from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema, Ties
    from spark_upsert.errors import UpsertFlowError
    from spark_upsert.feedback import FeedbackUpsert
    from spark_upsert.replication.waiting import wait_for_lsn
    from spark_upsert.table.changelog.read import ChangeOptions, Deduplication
    from spark_upsert.table.log.manifest import Commit, Transaction
    from spark_upsert.table.log.properties import LateRows
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
    "wait_for_lsn",
]

_HOMES = {
    "ChangeOptions": "table.changelog.read",
    "Commit": "table.log.manifest",
    "Deduplication": "table.changelog.read",
    "Engine": "core.merge_engines",
    "ErrorPolicy": "core.schema",
    "FeedbackUpsert": "feedback",
    "Gap": "table.watch",
    "LateRows": "table.log.properties",
    "MergeEngine": "core.merge_engines",
    "Rule": "core.merge_engines",
    "Scope": "core.schema",
    "SealedEpoch": "table.watch",
    "Table": "table.table",
    "TableSchema": "core.schema",
    "Ties": "core.schema",
    "Transaction": "table.log.manifest",
    "UpsertFlowError": "errors",
    "wait_for_lsn": "replication.waiting",
}


def _run_observer() -> RunObserver:
    from spark_upsert.delta import prepared_files

    return prepared_files


def _commit_observer() -> CommitObserver:
    from spark_upsert.delta import follow

    return follow


# Every process that imports a part of the package runs this: Python imports the package first. A
# process without a published table does not load the mirror.
register_run_observer(_run_observer)
register_commit_observer(_commit_observer)

if not TYPE_CHECKING:  # Or any name would pass for one of ours.

    def __getattr__(name: str) -> Any:
        """Import a public name on first access."""
        if name not in _HOMES:
            raise AttributeError(f"module 'spark_upsert' has no attribute '{name}'")
        attribute = getattr(import_module(f"spark_upsert.{_HOMES[name]}"), name)
        globals()[name] = attribute
        return attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
