"""Imports point down: the table of layers against the files."""

from __future__ import annotations

from collections import Counter

import pytest

from tools.layers import LAYERS, Import, imports, level_of, modules, unit_of

MODULES = modules()


def is_allowed(found: Import) -> bool:
    above, below = unit_of(found.module), unit_of(found.imported)
    return above == below or (
        above is not None and below is not None and level_of(above) > level_of(below)
    )


def test_every_module_has_a_layer() -> None:
    assert [module for module in MODULES if unit_of(module) is None] == []


def test_every_unit_has_a_module() -> None:
    assert {unit for layer in LAYERS for unit in layer} == {unit_of(module) for module in MODULES}


FILES_MAX = 20
"""More files than that are no folder that a reader keeps in mind."""


def test_no_folder_is_crowded() -> None:
    count = Counter(path.parent for path in MODULES.values())
    assert {str(folder) for folder, files in count.items() if files > FILES_MAX} == set()


def test_imports_point_down() -> None:
    assert [
        f"{i.module} -> {i.imported}" for i in sorted(imports(MODULES)) if not is_allowed(i)
    ] == []


@pytest.mark.parametrize(
    ("module", "imported", "is_down"),
    [
        ("spark_upsert.table.table", "spark_upsert.table.log.log", True),
        ("spark_upsert.table.log.log", "spark_upsert.table.log.clock", True),
        ("spark_upsert.table.log.log", "spark_upsert.table.entries.check", False),
        ("spark_upsert.views.view", "spark_upsert.routed.plan", False),
        ("spark_upsert.model.schema", "spark_upsert", False),
        ("spark_upsert", "spark_upsert.table.table", True),
    ],
)
def test_what_is_down(module: str, imported: str, is_down: bool) -> None:
    assert is_allowed(Import(module, imported)) is is_down
