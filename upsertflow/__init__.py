"""upsertflow: keyed changes become a table, its exact changelog, and views of it.

>>> from upsertflow import Table

Each name is imported on first access, so that ``import upsertflow`` costs nothing. `compact`,
`flow`, `register`, `view` and `watch` need PySpark; all other names need pyarrow and numpy only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import spark_upsert
from spark_upsert import __version__

if TYPE_CHECKING:
    from pyspark_upsertflow import compact, flow, register, view, watch
    from spark_upsert import (
        ChangeOptions,
        Commit,
        Deduplication,
        Engine,
        ErrorPolicy,
        FeedbackUpsert,
        Gap,
        LateRows,
        MergeEngine,
        Rule,
        Scope,
        SealedEpoch,
        Table,
        TableSchema,
        Ties,
        Transaction,
        UpsertFlowError,
    )
    from spark_upsert.plan import agg

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
    "agg",
    "compact",
    "flow",
    "register",
    "view",
    "watch",
]

_MODULES = {"agg": "spark_upsert.plan.agg", "flow": "pyspark_upsertflow.flow"}

if not TYPE_CHECKING:  # A type checker would accept any name.

    def __getattr__(name: str) -> Any:
        """Import a public name on first access."""
        if name not in __all__:
            raise AttributeError(f"module 'upsertflow' has no attribute '{name}'")
        if name in _MODULES:
            attribute = import_module(_MODULES[name])
        elif name in spark_upsert.__all__:
            attribute = getattr(spark_upsert, name)
        else:
            attribute = getattr(import_module("pyspark_upsertflow"), name)
        globals()[name] = attribute
        return attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
