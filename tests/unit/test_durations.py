"""One grammar of durations, wherever one is given; times are shown as ISO 8601."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.durations import render_ms, render_time, try_parse_ms
from spark_upsert.core.schema import Scope
from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.settings import ObjectSettings
from spark_upsert.table.log.properties import PROPERTY, TombstoneRetention
from tests.support.stores import MemoryStore
from tests.support.tables import make_table, schema_of

DURATIONS: Mapping[str, int | None] = {
    "250ms": 250,
    "30s": 30_000,
    "2m": 120_000,
    "1.5h": 5_400_000,
    "12 Hours": 43_200_000,
    "7 days": 604_800_000,
    " 2w ": 1_209_600_000,
    "7": None,
    "7 moons": None,
    "-7d": None,
    "7 days 3 hours": None,
    "1e3 s": None,
    "٣ days": None,
    f"{'9' * 40} days": None,
}


def by_consumer_ttl(text: str) -> int:
    given = {"path": "/lake", "consumerId": "c", "consumerTtl": text}
    return ReadOptions.parse(given).consumer_ttl_ms


def by_tombstone_retention(text: str) -> int | None:
    written = WriteOptions.parse({"path": "/lake", "tombstoneRetention": text})
    return TombstoneRetention.parse(written.properties[PROPERTY]).milliseconds


def by_retry_timeout(text: str) -> float:
    settings = ObjectSettings.of("s3://bucket/table", {"retry_timeout": text})
    return settings.retry_seconds_max * 1000


READERS: Mapping[str, Callable[[str], float | None]] = {
    "consumerTtl": by_consumer_ttl,
    "tombstoneRetention": by_tombstone_retention,
    "storage.retry_timeout": by_retry_timeout,
}


@pytest.mark.parametrize("text", DURATIONS)
def test_a_duration_means_the_same_in_every_option_and_command(text: str) -> None:
    expected = DURATIONS[text]
    for option, read in READERS.items():
        if expected is not None:
            assert read(text) == expected
        else:
            with pytest.raises(OptionError, match=option):
                read(text)
    done = CliRunner().invoke(upsertflow, ["expire", "/no/table", f"--retain={text}"])
    assert ("a number with a unit" in done.output) is (expected is None)


def test_a_retention_is_by_epochs_and_time() -> None:
    for text, epochs, milliseconds in (
        ("7d and 100 epochs", 100, 604_800_000),
        ("1 epoch, 90 min", 1, 5_400_000),
        ("100epochs", 100, None),
    ):
        assert TombstoneRetention.parse(text) == TombstoneRetention(epochs, milliseconds)


def test_a_duration_is_exact_and_shown_in_its_largest_whole_unit() -> None:
    assert [try_parse_ms(text) for text in ("0.1 s", "1.0015 s")] == [100, 1001]
    shown = ["0 ms", "1500 ms", "1 second", "90 minutes", "7 days"]
    assert [*map(render_ms, (0, 1500, 1000, 5_400_000, 604_800_000))] == shown


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (-1, "1969-12-31T23:59:59.999Z"),
        (253_402_300_799_000, "9999-12-31T23:59:59Z"),
        (253_402_300_800_000, "253402300800000 ms since 1970"),
        (10**30, f"{10**30} ms since 1970"),
    ],
)
def test_a_time_is_shown_as_iso_8601(time_ms: int, text: str) -> None:
    assert render_time(time_ms) == text


def test_a_time_before_the_table_is_shown_as_iso_8601() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    with pytest.raises(DataLossError, match=r"1969-12-31T23:59:59\.993Z"):
        table.log.at_timestamp(-7)
