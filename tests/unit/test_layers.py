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


FACE = """
_HOMES = {"Table": "table.table"}
found = getattr(import_module(f"spark_upsert.{_HOMES[name]}"), name)
"""


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('import_module("spark_upsert.delta.follow")', {"spark_upsert.delta.follow"}),
        ('importlib.import_module("spark_upsert.delta")', {"spark_upsert.delta"}),
        ('def f():\n    return __import__("spark_upsert.delta")', {"spark_upsert.delta"}),
        ('HOMES = ("spark_upsert.delta",)', {"spark_upsert.delta"}),
        ('import_module("spark_upsert")', {"spark_upsert"}),
        ('import_module("spark_upsert." + "delta")', {"spark_upsert.delta"}),
        (FACE, {"spark_upsert.table.table"}),
        ('"""See spark_upsert.delta.follow."""', set()),
        ("import_module(name_of_a_users_module)", set()),
        ('versions["spark_upsert"]', set()),
    ],
    ids=[
        *("by its name", "of the module", "the function of Python", "a list"),
        *(
            "the face",
            "in two parts",
            "a face",
            "a docstring",
            "a name of others",
            "a distribution",
        ),
    ],
)
def test_a_text_that_names_a_module_is_an_import(code: str, found: set[str]) -> None:
    assert set(named(ast.parse(code))) == found


@pytest.mark.parametrize(
    ("module", "imported", "is_down"),
    [
        ("spark_upsert.table.table", "spark_upsert.table.log.log", True),
        ("spark_upsert.table.log.log", "spark_upsert.table.log.storage", True),
        ("spark_upsert.table.log.log", "spark_upsert.table.state.check", False),
        ("spark_upsert.views.view", "spark_upsert.routed.plan", False),
        ("spark_upsert.core.schema", "spark_upsert", False),
        ("spark_upsert", "spark_upsert.table.table", True),
        ("spark_upsert", "spark_upsert.delta.follow", True),
        ("spark_upsert.table.published", "spark_upsert.delta.follow", False),
    ],
)
def test_what_is_down(module: str, imported: str, is_down: bool) -> None:
    assert is_allowed(Import(module, imported)) is is_down
