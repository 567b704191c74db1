"""Bugs in writes into many tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from spark_upsert.options import routed as options
from spark_upsert.options.routed import Told
from spark_upsert.routed import routes, template
from spark_upsert.routed.routes import Router
from tests.planted.bug import Patch, bug, wrapped
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


LEAD = promises.test_p5_each_row_goes_where_its_own_values_lead


@bug("tables are told apart by the first of their columns", LEAD)
def _() -> Patch:
    def by_first(original: Any, self: Router, values: Any) -> Any:
        firsts = self.__dict__.setdefault("_firsts", {})
        return original(self, firsts.setdefault(values[:1], values))

    return wrapped(Router, "_route", by_first)


@bug("a null is taken for an empty text", LEAD)
def _() -> Patch:
    def filled(original: Any, template: Any, values: Any) -> Any:
        found = original(template, [value or "" for value in values])
        return replace(found, values=tuple(values))

    return wrapped(routes, "route_of", filled)
