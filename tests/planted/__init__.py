"""Bugs that are planted: a file per area, and the list of all of them.

A new file needs no entry anywhere: all modules of this folder are imported. Each bug is caught by a
test of `tests.promises` (`tests.test_tests_can_fail` sees to it), some by the worlds of
`tests.simulation`, too.
"""

from importlib import import_module
from pkgutil import iter_modules

from tests.planted.bug import BUGS, Bug

__all__ = ["BUGS", "Bug"]

for _area in iter_modules(__path__, f"{__name__}."):
    import_module(_area.name)
