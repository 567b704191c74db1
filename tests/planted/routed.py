"""Bugs in writes into many tables."""

from __future__ import annotations

from unittest.mock import patch

from spark_upsert.options import routed as options
from spark_upsert.options.routed import Told
from spark_upsert.routed import template
from tests.planted.bug import Patch, bug
from tests.promises import test_routed_option_promises as option_promises
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


TOLD = option_promises.test_p5_each_table_is_told_what_a_look_at_all_patterns_finds


@bug("a pattern of wildcards is believed before a name", TOLD)
def _() -> Patch:
    return patch.object(Told, "weight", property(lambda self: (False, -len(self.pattern))))


@bug("of two patterns that disagree one is taken", TOLD)
def _() -> Patch:
    return patch.object(options, "_strongest", lambda name, about: max(about, key=str))
