"""upsertflow without Spark: keyed changes in, a table and its exact changelog out.

>>> from spark_upsert import Table

The names below are the public ones; they are imported when they are first asked for, so that
importing the package costs nothing. It knows pyarrow and numpy, and nothing of Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_upsert._version import __version__

if TYPE_CHECKING:
    from spark_upsert.changelog.modes import ChangeOptions, Deduplication
    from spark_upsert.errors import UpsertFlowError
    from spark_upsert.feedback import FeedbackUpsert
    from spark_upsert.model.engines import Engine, MergeEngine, Rule
    from spark_upsert.model.schema import ErrorPolicy, Scope, TableSchema, Ties
    from spark_upsert.state.log.manifest import Commit, Transaction
    from spark_upsert.state.tombstones import LateRows
    from spark_upsert.table import Table
    from spark_upsert.watchers import Gap, SealedEpoch

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
    "ChangeOptions": "changelog.modes",
    "Commit": "state.log.manifest",
    "Deduplication": "changelog.modes",
    "Engine": "model.engines",
    "ErrorPolicy": "model.schema",
    "FeedbackUpsert": "feedback",
    "Gap": "watchers",
    "LateRows": "state.tombstones",
    "MergeEngine": "model.engines",
    "Rule": "model.engines",
    "Scope": "model.schema",
    "SealedEpoch": "watchers",
    "Table": "table",
    "TableSchema": "model.schema",
    "Ties": "model.schema",
    "Transaction": "state.log.manifest",
    "UpsertFlowError": "errors",
}


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
