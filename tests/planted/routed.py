"""Bugs in writes into many tables."""

from __future__ import annotations

from unittest.mock import patch

from spark_upsert.routed import template
from tests.planted.bug import Patch, bug
from tests.promises import test_routed_promises as promises

MEET = promises.test_p5_rows_of_other_values_never_meet_in_a_folder


@bug("a value that begins like a hidden folder is one", MEET)
def _() -> Patch:
    return patch.object(template, "_HIDDEN", ("\0",))


@bug("what stands between two values is not escaped in them", MEET)
def _() -> Patch:
    return patch.object(template, "_separator", lambda literal: "~")


@bug("a folder's name may have any length", MEET)
def _() -> Patch:
    return patch.object(template, "SEGMENT_BYTES_MAX", 4096)
