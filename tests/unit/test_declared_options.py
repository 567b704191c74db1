"""An option is declared once, and what is known of it follows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.options.declare import (
    FREE,
    NAMES,
    AppliesTo,
    Option,
    Options,
    at_least,
    combined_field,
    declared,
    exclusive_groups,
    flag,
    names_for_whole_operation,
    nested_field,
    options_only_for,
    read_values,
)
from spark_upsert.options.inputs import DiscoveryOptions, InputOptions, ReadPlan
from spark_upsert.options.postgres import PostgresOptions
from spark_upsert.options.read import MergeOptions, PlanOptions, QueryOptions, ReadOptions
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.options.write import EnvelopeOptions, WriteOptions
from tools.option_reference import SCOPES

OF_READS = (InputOptions, MergeOptions, PlanOptions, QueryOptions, ReadOptions, ReadPlan)
CLASSES = (
    *OF_READS,
    DiscoveryOptions,
    EnvelopeOptions,
    PostgresOptions,
    RoutedOptions,
    WriteOptions,
)


@dataclass(frozen=True, kw_only=True)
class Inner:
    limit: int | None = Option("limit", at_least(2), FREE, only=AppliesTo.STREAM).as_field(
        "A bound."
    )


@dataclass(frozen=True, kw_only=True)
class Outer(Inner):
    is_wide: bool = Option("isWide", flag, FREE, default=True, excludes=("isNarrow",)).as_field(
        "Wide."
    )
    is_narrow: bool = Option(
        "isNarrow", flag, FREE, default=False, is_of_whole=True, excludes=("one",)
    ).as_field("Narrow.")
    inner: Inner = nested_field(Inner)
    both: dict[str, str] = combined_field(Option("one", Options.text, FREE).with_meaning("One."))


def parsed(**given: str) -> Outer:
    return Outer(**read_values(Outer, Options(given, declared(Outer))))


def test_what_is_given_is_read_and_the_rest_is_the_default() -> None:
    assert parsed() == Outer()
    assert parsed(is_wide="false", LIMIT="3") == Outer(is_wide=False, limit=3)
    with pytest.raises(OptionError, match="'limit' expects a whole number of at least 2"):
        parsed(limit="1")
    with pytest.raises(OptionError, match=r"Did you mean 'limit'"):
        parsed(limits="1")
    assert options_only_for(parsed(), AppliesTo.STREAM) == []
    assert options_only_for(parsed(limit="2"), AppliesTo.STREAM) == ["limit"]
    assert options_only_for(parsed(limit="2"), AppliesTo.BATCH) == []


def test_options_that_exclude_each_other_are_refused() -> None:
    assert list(declared(Outer)) == ["isWide", "isNarrow", "limit", "one"]
    with pytest.raises(OptionError, match="'isWide' and 'isNarrow' contradict each other"):
        parsed(isWide="true", isNarrow="true")
    assert exclusive_groups(declared(Outer)) == (("isWide", "isNarrow"),)
    assert names_for_whole_operation(declared(Outer)) == ("isNarrow",)


@pytest.mark.parametrize("cls", CLASSES)
def test_a_field_may_be_none_where_its_option_has_no_default(cls: type[Any]) -> None:
    """The types cannot say it: what `Option.as_field` gives is never None to a checker."""
    for each in fields(cls):
        option = each.metadata.get("option")
        if option is not None and not option.required:
            assert (option.default is None) == str(each.type).endswith("None"), each.name


def test_all_that_classes_declare_is_in_one_scope_and_once() -> None:
    known = Counter(name for options in SCOPES.values() for name in options)
    found = Counter(name for cls in CLASSES if cls is not EnvelopeOptions for name in declared(cls))
    # A read of a table has the query's as a part of it.
    found.subtract(declared(QueryOptions).keys())
    assert found == known
    for options in SCOPES.values():
        assert all(option.meaning.endswith((".", ">")) for option in options.values())
    assert {scope: [*options] for scope, options in SCOPES.items()} == {
        scope: [*names] for scope, names in NAMES.items()
    }
