"""Late doors: a module that is loaded when a name of it is first asked for.

A module whose callers mostly need no more than a part of it declares the rest at its head as late.
Types are checked, the test of layers counts the name of the module as an import, and what opens a
table loads no vacuum.
`tools.reach` lists all late doors, and a test runs without what is behind them.

    if TYPE_CHECKING:
        from spark_upsert.table import upkeep
    else:
        upkeep = Late("spark_upsert.table.upkeep")

Rejected: imports within functions, which stand wherever a function needs something, and which no
list shows; and `importlib.util.LazyLoader`, which loads a module when any of its attributes is
touched, by the import system as well.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """A stand-in for a module, which gives the module's names.

    Parameters
    ----------
    module : str
        The whole name of the module.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __repr__(self) -> str:
        return f"Late({self._module!r})"

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)
