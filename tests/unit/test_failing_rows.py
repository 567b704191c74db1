"""Rows of which a formula has no value: what passes, what stops a view, and how it goes on."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, OptionError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.plan import agg
from spark_upsert.store.open import open_store
from spark_upsert.table.table import Table
from spark_upsert.views import row_errors
from spark_upsert.views.plan_builder import Plan
from tests.support.view_keepers import Keeper
from tests.support.view_queries import Query, batch_rows, folded

SHARES = pa.schema({"id": pa.int64(), "among": pa.int64(), "team": pa.string()})

FAILS = "100 DIV among"


class Shares:
    """A table of how many share something, and views of what each of them gets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.table = Table.create(str(root / "shares"), SHARES, keys=["id"])
        self.put((1, 5), (2, 10))
        self.rows = Plan.of_table(str(root / "shares"))
        self.view = self.rows.select("id", each=FAILS)
        self.totals = self.rows.select("id", "team", each=FAILS).group_by("team")
        self.groups = self.totals.agg(n=agg.count(), total=agg.sum("each"))

    def put(self, *rows: tuple[int, int]) -> None:
        given = [{"id": key, "among": among, "team": "a"} for key, among in rows]
        self.table.upsert(pa.Table.from_pylist(given, schema=SHARES))

    def delete(self, key: int) -> None:
        gone = pa.table({"id": [key], "among": [None], "team": [None], "gone": [True]})
        self.table.upsert(gone, deletes="gone")

    def keeper(self, **options: str) -> Keeper:
        return Keeper(self.view.node, self.root / "kept", self.root / "checkpoint", options)

    def kept(self) -> dict[int, int | None]:
        rows = Table(open_store(str(self.root / "kept"))).snapshot().to_pylist()
        return {row["id"]: row["each"] for row in rows}


@pytest.fixture
def shares(tmp_path: Path) -> Shares:
    return Shares(tmp_path)


def finish(keeper: Keeper) -> None:
    while keeper.run():
        pass


def test_a_row_that_is_bad_between_two_epochs_of_a_batch_passes(shares: Shares) -> None:
    query = Query(shares.view.node)
    rows = query.all()
    shares.put((1, 0), (3, 0))
    shares.put((1, 4), (2, 20))
    shares.put((3, 50))
    rows += query.all()
    assert folded(rows) == {(1, 25), (2, 5), (3, 2)}


def test_a_batch_that_leaves_a_bad_row_stops_and_names_it(shares: Shares) -> None:
    keeper = shares.keeper()
    finish(keeper)
    shares.put((2, 0))
    with pytest.raises(DataError, match=r"project of shares.* row id=2") as error:
        keeper.run()
    assert FAILS in str(error.value)
    assert shares.kept() == {1: 20, 2: 10}


@pytest.mark.parametrize("limit", [{}, {"maxEpochsPerTrigger": "1"}], ids=["all", "one by one"])
def test_a_query_that_was_stopped_goes_on_once_the_row_is_repaired(
    shares: Shares, limit: Mapping[str, str]
) -> None:
    """Its batch is begun: it ends before the repair, however late that comes."""
    keeper = shares.keeper(**limit)
    finish(keeper)
    shares.put((2, 0))
    shares.put((1, 4))
    with pytest.raises(DataError):
        finish(keeper)
    shares.put((3, 1))
    shares.put((2, 50))
    keeper.start(dict(limit))
    finish(keeper)
    assert shares.kept() == {1: 25, 2: 2, 3: 100}


def test_a_row_that_is_repaired_and_bad_again_stops_a_batch_that_holds_both(shares: Shares) -> None:
    query = Query(shares.view.node)
    query.all()
    shares.put((1, 0))
    shares.put((1, 4))
    shares.put((1, 0))
    with pytest.raises(DataError):
        query.all()


def test_formulas_are_null_where_the_reader_says_so(
    shares: Shares, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = shares.keeper()
    finish(keeper)
    shares.put((2, 0))
    with pytest.raises(DataError) as error:
        finish(keeper)
    [(name, value)] = re.findall(r'option\("(\w+)", "(\w+)"\)', error.value.hint)
    with caplog.at_level(logging.WARNING):
        keeper.start({name: value})
        finish(keeper)
    assert shares.kept() == {1: 20, 2: None}
    assert "formulas without a value" in caplog.text


def test_what_was_null_is_taken_back_by_a_query_that_stops_again(shares: Shares) -> None:
    """The option says what may be shown, and not what a view is: it may change at any start."""
    keeper = shares.keeper(onError="null")
    finish(keeper)
    shares.put((2, 0), (3, 0))
    finish(keeper)
    keeper.start({})
    shares.put((1, 4))
    finish(keeper)
    assert shares.kept() == {1: 25, 2: None, 3: None}
    shares.put((2, 50))
    shares.delete(3)
    finish(keeper)
    assert shares.kept() == {1: 25, 2: 2}


def test_a_formula_without_a_value_counts_in_no_sum(shares: Shares) -> None:
    path = str(shares.root / "groups")
    assert shares.groups.refresh(path)
    shares.put((2, 0))
    with pytest.raises(DataError, match="row id=2"):
        shares.groups.refresh(path)
    assert shares.groups.refresh(path, on_error="null")
    assert Plan.of_table(path).to_arrow().to_pylist() == [{"team": "a", "n": 2, "total": 20}]
    shares.put((2, 50))
    assert shares.groups.refresh(path)
    assert Plan.of_table(path).to_arrow().to_pylist() == [{"team": "a", "n": 2, "total": 22}]


def named(error: pytest.ExceptionInfo[DataError]) -> list[tuple[str, str, int]]:
    """Return each key, table and version that a message names."""
    found = re.findall(r"(\w+=[^ ]+) of '([^']+)' at version (\d+)", error.value.message)
    return [(key, Path(path).name, int(version)) for key, path, version in found]


KEYLESS: Mapping[str, Callable[[Plan], Plan]] = {
    "in the projection that drops the key": lambda rows: rows.select("team", each=FAILS),
    "behind it": lambda rows: (
        rows.select("team", x="among").filter("x < 1000").select("team", each="100 DIV x")
    ),
    "in a condition behind it": lambda rows: (
        rows.select("team", each="among").filter("100 DIV each > 0").select("team", each="1")
    ),
    "under a name that is carried": lambda rows: rows.select("team", __id="among").select(
        "team", each="100 DIV __id"
    ),
}


@pytest.mark.parametrize("where", KEYLESS)
@pytest.mark.sweep(1)
def test_rows_without_a_key_stop_and_go_on_once_what_is_named_is_repaired(
    shares: Shares, where: str
) -> None:
    view = KEYLESS[where](shares.rows).group_by("team").agg(n=agg.count(), s=agg.sum("each"))
    path = str(shares.root / "groups")
    assert view.refresh(path)
    before = Plan.of_table(path).to_arrow()
    keeper = Keeper(view.node, Path(path), shares.root / "checkpoint", {})
    shares.put((2, 0))
    with pytest.raises(DataError) as error:
        finish(keeper)
    [(key, table, version)] = named(error)
    assert (key, table, version) == ("id=2", "shares", 2)
    assert Plan.of_table(path).to_arrow() == before
    shares.put((int(key.partition("=")[2]), 10))
    finish(keeper)  # Its batch is begun, and ends before the repair.
    assert Plan.of_table(path).to_arrow() == before


TEAMS = pa.schema({"team": pa.string(), "bonus": pa.int64()})


def with_bonus(shares: Shares) -> tuple[Plan, Table]:
    """Return what each gets with the bonus of its team."""
    path = str(shares.root / "teams")
    table = Table.create(path, TEAMS, keys=["team"])
    table.upsert(pa.table([["a"], [5]], schema=TEAMS))
    both = shares.rows.join(Plan.of_table(path), {"team": "team"}, reverse="scan")
    return both.select("team", each="100 DIV bonus").group_by("team").agg(s=agg.sum("each")), table


def test_all_rows_are_named_of_which_a_failing_one_is_made(shares: Shares) -> None:
    view, teams = with_bonus(shares)
    path = str(shares.root / "groups")
    assert view.refresh(path)
    teams.upsert(pa.table([["a"], [0]], schema=TEAMS))
    with pytest.raises(DataError, match="and 1 more") as error:
        view.refresh(path)
    [order, team] = named(error)
    assert order[0] in ("id=1", "id=2")
    assert (order[1:], team) == (("shares", 1), ("team='a'", "teams", 2))
    teams.upsert(pa.table([["a"], [50]], schema=TEAMS))
    assert view.refresh(path)
    assert Plan.of_table(path).to_arrow().to_pylist() == [{"team": "a", "s": 4}]


def test_more_bad_rows_than_are_held_do_not_pass(
    shares: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_errors, "RECORDED_ROWS_MAX", 2)
    path = str(shares.root / "groups")
    assert shares.groups.refresh(path)
    keeper = Keeper(shares.groups.node, Path(path), shares.root / "checkpoint", {})
    shares.put((1, 0), (2, 0), (3, 0))
    with pytest.raises(DataError, match=r"row id=\d of .*shares' at version 2 and 1 more"):
        finish(keeper)
    shares.put((1, 1), (2, 1), (3, 1))
    with pytest.raises(DataError, match="for more than 2 rows") as error:
        finish(keeper)
    [(name, value)] = re.findall(r'option\("(\w+)", "(\w+)"\)', error.value.hint)
    keeper.start({name: value})
    finish(keeper)
    assert Plan.of_table(path).to_arrow().to_pylist() == [{"team": "a", "n": 3, "total": 300}]


def test_batch_reads_and_conditions_stop_at_a_bad_row_or_show_null(shares: Shares) -> None:
    shares.put((3, 0))
    with pytest.raises(DataError, match="row id=3"):
        batch_rows(shares.view.node)
    assert batch_rows(shares.view.node, onError="null") == {(1, 20), (2, 10), (3, None)}
    view = shares.rows.filter("100 DIV among > 15").select("id")
    with pytest.raises(DataError, match=r"filter of shares.* row id=3"):
        view.to_arrow()
    assert view.to_arrow(on_error="null").column("id").to_pylist() == [1]


def test_many_bad_rows_are_found_among_others(shares: Shares) -> None:
    shares.put(*((key, key % 7) for key in range(2000)))
    found = shares.view.to_arrow(on_error="null").to_pylist()
    wanted = {key: 100 // (key % 7) if key % 7 else None for key in range(2000)}
    assert {row["id"]: row["each"] for row in found} == wanted
    with pytest.raises(DataError, match="and 285 more"):
        shares.view.to_arrow()


def test_the_option_is_of_views(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a table has no formulas"):
        ReadPlan.parse({"path": str(tmp_path), "onError": "null"})


# -- sums that do not fit


AMOUNTS: Mapping[str, tuple[pa.DataType, int | Decimal]] = {
    "int64": (pa.int64(), (1 << 63) - 1),
    "decimals of 38 digits": (pa.decimal128(38, 0), 9 * Decimal(10) ** 37),
}


class Sums:
    """Amounts in two groups, of which the one may come to more than can be shown."""

    def __init__(self, root: Path, type_: pa.DataType, scale: int | None = None) -> None:
        self.root = root
        self.schema = pa.schema({"id": pa.int64(), "team": pa.string(), "x": type_})
        self.table = Table.create(str(root / "amounts"), self.schema, keys=["id"])
        rows = Plan.of_table(str(root / "amounts"))
        self.view = rows.group_by("team").agg(n=agg.count(), s=agg.sum("x", scale=scale))
        self.put((0, "small", 1))

    def put(self, *rows: tuple[int, str, object]) -> None:
        given = [dict(zip(self.schema.names, row, strict=True)) for row in rows]
        self.table.upsert(pa.Table.from_pylist(given, schema=self.schema))

    def shown(self, name: str = "kept", **how: str) -> dict[str, object]:
        self.view.refresh(str(self.root / name), **how)
        rows = Plan.of_table(str(self.root / name)).to_arrow().to_pylist()
        return {row["team"]: row["s"] for row in rows}


@pytest.mark.parametrize("kind", AMOUNTS)
def test_a_sum_that_does_not_fit_is_null_in_its_group_alone(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    type_, most = AMOUNTS[kind]
    sums = Sums(tmp_path, type_)
    sums.put((1, "big", most))
    assert sums.shown() == {"small": 1, "big": most}
    sums.put((2, "big", most))
    with caplog.at_level(logging.WARNING):
        assert sums.shown() == {"small": 1, "big": None}
    assert "groups whose values do not fit" in caplog.text
    kept = Table.open(str(tmp_path / "kept"))
    kept.compact(full=True)
    assert kept.check().is_sound
    sums.put((2, "small", 5))
    assert sums.shown() == {"small": 6, "big": most}, "it is there again as soon as it fits"


def test_changes_of_other_groups_are_told_beside_one_that_does_not_fit(tmp_path: Path) -> None:
    sums = Sums(tmp_path, pa.int64())
    sums.put((1, "big", (1 << 63) - 1), (2, "big", 1))
    sums.shown()
    query = Query({"path": str(tmp_path / "kept")})
    rows = query.all()
    sums.put((3, "small", 5))
    sums.shown()
    sums.put((2, "small", 1))
    sums.shown()
    rows += query.all()
    assert folded(rows) == {("small", 3, 7), ("big", 1, (1 << 63) - 1)}


def test_a_batch_beyond_38_digits_is_null_in_its_group_until_it_fits(tmp_path: Path) -> None:
    most = Decimal(9 * 10**37)
    sums = Sums(tmp_path, pa.decimal128(38, 0))
    sums.put(*((key, "big", most) for key in range(1, 50)))
    assert sums.shown() == {"small": 1, "big": None}
    kept = Table.open(str(tmp_path / "kept"))
    sums.put((50, "big", -most), (51, "small", 4))
    assert sums.shown() == {"small": 5, "big": None}
    kept.compact(full=True)
    sums.put(*((key, "big", -most) for key in range(1, 25)), (49, "big", Decimal(9 * 10**37 - 1)))
    assert sums.shown() == {"small": 5, "big": -1}
    sums.put(*((key, "small", 0) for key in range(1, 51)))
    assert sums.shown() == {"small": 5}
    kept.compact(full=True)
    assert kept.check().is_sound
    assert kept.snapshot().num_rows == 2, "the group and the marker"


def test_a_float_with_too_many_digits_for_its_sum_is_a_row_that_fails(tmp_path: Path) -> None:
    sums = Sums(tmp_path, pa.float64(), scale=15)
    sums.put((1, "big", 1e30), (2, "big", 2.5), (3, "big", float("inf")))
    with pytest.raises(DataError, match=r"more than 23 digits before the point.* row id=1"):
        sums.shown()
    assert sums.shown(on_error="null") == {"small": 1.0, "big": float("inf")}
    sums.put((1, "big", 0.5), (3, "big", None))
    assert sums.shown() == {"small": 1.0, "big": 3.0}
