"""upsertflow: keyed changes become a table, its exact changelog, and views of it.

>>> from upsertflow import Table

Each name is imported on first access, so that ``import upsertflow`` costs nothing. `by_hash`,
`compact`, `flow`, `register`, `view` and `watch` need PySpark; all other names need pyarrow and
numpy only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import spark_upsert

if TYPE_CHECKING:
    from pyspark_upsertflow import by_hash, compact, flow, register, view, watch
    from spark_upsert import *  # noqa: F403 - type checkers follow it
    from spark_upsert.plan import agg

__all__ = ["agg", "by_hash", "compact", "flow", "register", "view", "watch"]
__all__ += spark_upsert.__all__

_MODULES = {"agg": "spark_upsert.plan.agg", "flow": "pyspark_upsertflow.flow"}

if not TYPE_CHECKING:  # A type checker would accept any name.

    def __getattr__(name: str) -> Any:
        """Import a public name on first access."""
        if name not in __all__:
            raise AttributeError(f"module 'upsertflow' has no attribute '{name}'")
        if name in _MODULES:
            attribute = import_module(_MODULES[name])
        else:
            package = "spark_upsert" if name in spark_upsert.__all__ else "pyspark_upsertflow"
            attribute = getattr(import_module(package), name)
        globals()[name] = attribute
        return attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
