"""Hints that are followed, a file for each room; `tests.unit.test_hints` runs them."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
