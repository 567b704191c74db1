"""Options that Spark hands down beside those of its user, and where it keeps them back.

=====================================  =====================================================
name                                   where it comes from
=====================================  =====================================================
``queryname``                          ``writeStream.queryName``
``location``, ``provider``, ``owner``  ``CREATE TABLE`` without columns, with
``comment``, ``option.X``              every given ``X`` a second time
``external``                           ``spark.catalog.createTable``
``paths``                              ``load`` with several paths; no table has several
=====================================  =====================================================

A catalog table keeps its options to itself: ``SELECT``, ``INSERT``, ``saveAsTable`` and
``toTable`` hand none of them over, the path included. Reads find them with the columns, if the
table was made without columns of its own (`pyspark_upsertflow.catalog`).

Only these names, in these forms, are passed over, so that a typo stays an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from spark_upsert.errors import OptionError

_NAMES = frozenset({"queryname", "location", "provider", "owner", "comment", "external"})
_REPEATED = "option."


def users_own(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a user gave.

    Raises
    ------
    OptionError
        Several paths are given.
    """
    by_lower = {name.lower(): value for name, value in given.items()}
    if "paths" in by_lower:
        raise _several_paths(by_lower["paths"])
    return {name: value for name, value in given.items() if not _is_sparks(name.lower(), by_lower)}


def _is_sparks(name: str, given: Mapping[str, str]) -> bool:
    if name.startswith(_REPEATED):
        # Not always as the same text: the path becomes a URI in one of the two.
        return name.removeprefix(_REPEATED) in given
    return name in _NAMES


def _several_paths(text: str) -> OptionError:
    try:
        paths = json.loads(text)
    except ValueError:  # An option of that name, given by hand.
        paths = [text]
    return OptionError(
        f"expected the path of one table, and found {len(paths)} paths: {', '.join(paths)}.",
        hint='name them as inputs of one read: .option("inputs", "a,b"), .option("input.a.path", '
        '...), .option("input.b.path", ...); or load each by itself, and join them with union.',
        option="paths",
    )


def missing_path() -> OptionError:
    """Return the error of a read or write without a path, which names what works."""
    return OptionError(
        "the option 'path' is required (where the table lies), but was not given. Spark hands none "
        "of a catalog table's options over, its location included.",
        hint='add .option("path", ...), and write with .save(path) and .start(path) instead of '
        "saveAsTable and toTable. In SQL: CREATE TABLE t USING upsertflow LOCATION '...', without "
        "columns, is read by its name; a write needs INSERT INTO t WITH (path='...'), or CREATE "
        "TEMPORARY VIEW v USING upsertflow OPTIONS (path '...').",
        option="path",
    )
