"""Arguments of public methods that are whole numbers: integers are taken, all else is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from spark_upsert import ChangeOptions, FeedbackUpsert, Table, TableSchema
from spark_upsert.core.python_values import (
    DURATION_MS_MAX,
    WHOLE_MAX,
    duration_argument,
    optional,
    version_argument,
    whole_argument,
)
from spark_upsert.errors import OptionError
from spark_upsert.options.declare import Options
from tests.support.stores import MemoryStore, forget_runs_and_logs

REFUSED: dict[str, Any] = {
    "a float": 7 * 86_400 * 1e3,
    "a float of numpy": np.float64(5),
    "a small float of numpy": np.float32(5),
    "NaN": float("nan"),
    "an infinity": float("inf"),
    "a truth value": True,
    "a truth value of numpy": np.bool_(True),
    "a decimal": Decimal(5),
    "a decimal of many digits": Decimal("1e999999999"),
    "a fraction": Fraction(5),
    "a text": "5",
    "bytes": b"5",
    "a duration": timedelta(days=7),
    "a duration of numpy": np.timedelta64(5, "ms"),
    "a point in time": datetime(2026, 1, 1),
    "a missing value of pandas": pd.NA,
    "a list": [5],
    "an array": np.array([5]),
    "a float of Arrow": pa.scalar(5.0),
    "an integer of 65 bits": 1 << 64,
    "an integer of many digits": 10**6000,
}

INTEGERS: list[Any] = [1, np.int64(1), np.uint8(1), np.array(1), np.intp(1), pa.scalar(1)]

COLUMNS = pa.schema({"region": pa.string(), "id": pa.int64()})
ROWS = pa.table({"region": ["eu"], "id": [1]})


def new_table() -> Table:
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(COLUMNS, keys=["region", "id"], hash_prefix=1))
    table.upsert(ROWS)
    return table


def feedback() -> FeedbackUpsert:
    return FeedbackUpsert(new_table(), "source")


BATCH = ROWS.to_batches()[0]

CALLS: dict[tuple[type, str], Callable[..., Any]] = {
    (Table, "__init__"): lambda **given: Table(MemoryStore(), **given),
    (Table, "open"): lambda **given: Table.open("no/table", **given),
    (Table, "create"): lambda **given: Table.create(
        "no/table", COLUMNS, keys=["region", "id"], **given
    ),
    (Table, "upsert"): lambda **given: new_table().upsert(ROWS, **given),
    (Table, "expire"): lambda **given: new_table().expire(**{"retain_versions": 1, **given}),
    (Table, "hold"): lambda **given: new_table().hold("c", **{"version": 1, **given}),
    (Table, "keep_held"): lambda **given: new_table().keep_held("c", **{"version": 1, **given}),
    (Table, "hold_all"): lambda **given: new_table().hold_all("c", **given),
    (Table, "having_prefix"): lambda **given: new_table().having_prefix(
        ROWS.select(["region"]), **given
    ),
    (Table, "get"): lambda **given: new_table().get([("eu", 1)], **given),
    (Table, "rows_having"): lambda **given: new_table().rows_having("id", [1], **given),
    (Table, "quarantine"): lambda **given: list(new_table().quarantine(**given)),
    (Table, "iter_changes"): lambda **given: list(
        new_table().iter_changes(
            **{"lower": 0, "upper": 2, "options": ChangeOptions(columns=("id",)), **given}
        )
    ),
    (FeedbackUpsert, "ingest"): lambda **given: feedback().ingest(BATCH, **{"ts": 0, **given}),
    (FeedbackUpsert, "advance"): lambda **given: feedback().advance(**given),
}
"""Calls of methods that need more than the argument; all others are called with it alone."""


def whole_arguments() -> Iterator[tuple[type, str, str]]:
    """Yield each argument of a public method that is annotated as an integer."""
    for owner in (Table, FeedbackUpsert):
        for method in dir(owner):
            routine = getattr(owner, method)
            if (method.startswith("_") and method != "__init__") or not inspect.isroutine(routine):
                continue
            for parameter in inspect.signature(routine).parameters.values():
                if "int" in str(parameter.annotation).split(" | "):
                    yield owner, method, parameter.name


ARGUMENTS = {f"{owner.__name__}.{m}({n})": (owner, m, n) for owner, m, n in whole_arguments()}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument_that_is_no_integer_is_refused_by_its_name(argument: str) -> None:
    owner, method, name = ARGUMENTS[argument]
    call = CALLS.get((owner, method)) or (lambda **given: getattr(new_table(), method)(**given))
    for title, value in REFUSED.items():
        with pytest.raises(OptionError, match=f"'{name}' expects") as caught:
            call(**{name: value})
        assert caught.value.fields["option"] == name, title


def test_the_arguments_are_found() -> None:
    assert len(ARGUMENTS) > 35
    assert {"Table.hold(ttl_ms)", "Table.pieces(at_least)"} <= set(ARGUMENTS)


@pytest.mark.parametrize("value", INTEGERS, ids=repr)
def test_a_lease_of_an_integer_of_any_type_is_read_by_another_process(value: Any) -> None:
    for convert in (whole_argument, version_argument, duration_argument):
        assert type(convert("n", value)) is int
    table = new_table()
    table.hold("consumer", value, ttl_ms=value)
    forget_runs_and_logs()
    [lease] = Table(table.store).consumers()
    assert (lease.version, lease.ttl_ms) == (1, 1)


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize(
    ("convert", "most"), [(whole_argument, WHOLE_MAX), (duration_argument, DURATION_MS_MAX)]
)
def test_the_bounds_are_included(convert: Callable[..., int], most: int, least: int) -> None:
    assert convert("n", least, least=least) == least
    assert convert("n", most) == most
    with pytest.raises(OptionError, match="'n' expects"):
        convert("n", most + 1)
    with pytest.raises(OptionError, match=f"from {least} to"):
        convert("n", least - 1, least=least)


def test_a_duration_given_as_an_option_has_the_same_bound() -> None:
    options = Options({"consumerTtl": f"{DURATION_MS_MAX} ms"}, ["consumerTtl"])
    assert options.duration_ms("consumerTtl") == DURATION_MS_MAX
    options = Options({"consumerTtl": f"{DURATION_MS_MAX + 1} ms"}, ["consumerTtl"])
    with pytest.raises(OptionError, match="'consumerTtl' expects"):
        options.duration_ms("consumerTtl")


def test_an_absent_argument_stays_absent_and_a_scan_has_one_piece_at_least() -> None:
    assert optional(version_argument, "version", None) is None
    assert optional(whole_argument, "seed", 0, most=1) == 0
    with pytest.raises(OptionError, match="'at_least' expects a whole number from 1"):
        new_table().pieces(0)
