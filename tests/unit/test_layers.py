"""Imports point down: the table of layers against the files."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tools.layers import LAYERS, Import, imports, level_of, modules, named, unit_of

MODULES = modules()


def is_allowed(found: Import) -> bool:
    above, below = unit_of(found.module), unit_of(found.imported)
    return above == below or (
        above is not None and below is not None and level_of(above) > level_of(below)
    )


def test_every_module_has_a_layer_and_no_layer_is_empty() -> None:
    units = {module: unit_of(module) for module in MODULES}
    assert [module for module, unit in units.items() if unit is None] == []
    assert {unit for layer in LAYERS for unit in layer} == set(units.values())


def test_no_folder_is_crowded() -> None:
    count = Counter(path.parent for path in MODULES.values())
    assert {str(folder) for folder, files in count.items() if files > 20} == set()


def test_imports_point_down() -> None:
    assert [each for each in sorted(imports(MODULES)) if not is_allowed(each)] == []


FACE = """
_HOMES = {"Table": "table.table"}
found = getattr(import_module(f"spark_upsert.{_HOMES[name]}"), name)
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('import_module("spark_upsert.delta.follow")', {"spark_upsert.delta.follow"}),
        ('def f():\n    return __import__("spark_upsert.delta")', {"spark_upsert.delta"}),
        ('HOMES = ("spark_upsert.delta",)', {"spark_upsert.delta"}),
        ('import_module("spark_upsert." + "delta")', {"spark_upsert.delta"}),
        (FACE, {"spark_upsert.table.table"}),
        ('"""See spark_upsert.delta.follow."""', set()),
    ],
)
def test_a_text_that_names_a_module_is_an_import(code: str, expected: set[str]) -> None:
    assert set(named(ast.parse(code))) == expected


def test_an_import_between_layers_points_down() -> None:
    log, table, view = "table.log.log", "table.table", "views.view"
    for above, below in ((table, log), (log, "table.log.storage")):
        assert is_allowed(Import(f"spark_upsert.{above}", f"spark_upsert.{below}"))
    for above, below in ((log, "table.state.check"), (view, "routed.plan")):
        assert not is_allowed(Import(f"spark_upsert.{above}", f"spark_upsert.{below}"))
    assert is_allowed(Import("spark_upsert", f"spark_upsert.{table}"))
    assert not is_allowed(Import("spark_upsert.core.schema", "spark_upsert"))
