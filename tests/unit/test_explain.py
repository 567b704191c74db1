"""What a read says that it will do, and that it is what it does."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange
from spark_upsert.core.keys import Positions
from spark_upsert.core.schema import DIFF, HASH, ErrorPolicy
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.options.read import ReadOptions
from spark_upsert.streams.inputs.batch import BatchRead
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.inputs.table import TableInput
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.columns import read_columns
from spark_upsert.streams.reads.explain import explain
from spark_upsert.streams.reads.splits import changes_splits, rows_splits
from spark_upsert.table.run.file import RunFile
from spark_upsert.table.run.remote import REMOTE_RUNS, Access, estimate_cost
from spark_upsert.table.run.rows import Part
from spark_upsert.table.state import lookup
from spark_upsert.table.table import Table

ROOT = Path(__file__).parents[2]

SIZES = re.compile(r", [\d,.]+ (bytes|([KM]i)?B)")

COLUMNS = pa.schema({"id": pa.int64(), "v": pa.int64()})


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Epoch 1: 1000 keys. 2: a hundred of them. 3: three. 4: an overwrite. 5: one key."""
    # Where keys lie between hashes is not left to chance.
    monkeypatch.setattr("spark_upsert.table.schema_changes.secrets.randbits", lambda bits: 7)
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"])
    append(table, range(1000))
    append(table, range(100))
    append(table, [1, 2, 3])
    append(table, [1, 2], overwrite=True)
    append(table, [2])
    return table


def append(table: Table, ids: Iterable[int], *, overwrite: bool = False) -> None:
    keys = list(ids)
    table.upsert(pa.table({"id": keys, "v": keys}), overwrite=overwrite)


def explained(table: Table, **given: str) -> str:
    """Return what a batch read says, without the sizes of files."""
    options = ReadOptions.parse({"path": table.store.url, "splits": "1", **given})
    read = BatchRead(options, read_columns(table.log, options))
    text = read.explain(read.splits())
    return SIZES.sub("", text)


ALL = "[0000000000000000, 10000000000000000)"

DENSE = "a command or more for 128 entries, a block of hashes, so that all blocks are read"
SPARSE = (
    "less than a command for 128 entries, a block of hashes, so that only blocks are read that a "
    "search meets"
)


def test_changes_say_where_they_are_cut_and_why(table: Table) -> None:
    assert explained(table, readChangeFeed="true", columns="v") == (
        "changes of versions 1 to 5, in 3 stretches\n"
        "  columns   v\n"
        "  mode      dropCarryovers: updates that leave all values as they were are left out\n"
        "  shown     an update as update_preimage and update_postimage\n"
        "stretch 1: versions 1 to 3\n"
        "  because   the first epoch with rows that is asked for\n"
        "  before    version 0: nothing\n"
        "  commands  3 files, 1,103 entries\n"
        "  look-ups  none: there is nothing before\n"
        "stretch 2: version 4\n"
        "  because   an overwrite, which compares the rows before it with those behind it\n"
        "  before    version 3: 3 files, 1,103 entries\n"
        "  after     1 file, 2 entries\n"
        "  look-ups  none: both are read through and compared\n"
        "stretch 3: version 5\n"
        "  because   the epoch before it is an overwrite\n"
        "  before    version 4: 1 file, 2 entries\n"
        "  commands  1 file, 1 entry\n"
        f"  look-ups  dense in 1 file, 2 entries: {DENSE}\n"
        "1 split\n"
        f"  {ALL} reads 5 files, 1,106 entries; searches 1 file, 2 entries"
    )


def look_ups(table: Table, version: str) -> list[str]:
    text = explained(table, readChangeFeed="true", startingVersion=version, endingVersion=version)
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if "look-ups" in line)
    return [line[12:] for line in lines[first : lines.index("1 split")]]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (2, [f"dense in 1 file, 1,000 entries: {DENSE}"]),
        (
            3,
            [
                f"dense in 1 file, 100 entries: {DENSE}",
                f"sparse in 1 file, 1,000 entries: {SPARSE}",
            ],
        ),
    ],
    ids=["dense", "sparse"],
)
def test_what_is_told_of_look_ups_is_what_they_do(
    table: Table, version: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look_ups(table, str(version)) == expected
    searches = []
    search_few = lookup._search_few

    def watched(part: Part, probes: npt.NDArray[np.uint64]) -> tuple[Positions, Positions]:
        searches.append(len(probes))
        return search_few(part, probes)

    monkeypatch.setattr(lookup, "_search_few", watched)
    table.changes(version, version + 1)
    assert len(searches) == sum(line.startswith("sparse") for line in expected)


def test_the_mode_is_told(table: Table) -> None:
    net = explained(table, readChangeFeed="true", deduplicationMode="netChanges")
    assert net.startswith(
        "changes of versions 1 to 5, in 1 stretch\n"
        "  columns   id, v\n"
        "  mode      netChanges: at most one change per key, at the last of its epochs\n"
        "  shown     an update as update_preimage and update_postimage\n"
        "stretch 1: versions 1 to 5\n"
        "  because   net changes over an overwrite or late rows compare what was with what is\n"
    )
    apart = explained(
        table, readChangeFeed="true", deduplicationMode="none", computeUpdates="false"
    )
    assert "  shown     an update as delete and insert\n" in apart
    assert "  mode      none: every change, those included that leave all" in apart


def test_error_entries_are_read_like_rows(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"], on_error=ErrorPolicy.QUARANTINE)
    append(table, [1])
    assert explained(table, metadata="quarantine").startswith("error entries of version 1\n")


def test_a_batch_of_a_stream_may_have_both(table: Table) -> None:
    options = ReadOptions.parse({"path": table.store.url, "readChangeFeed": "true", "splits": "1"})
    rows = rows_splits(table.log.at(2), options)
    changes = changes_splits(table.log, options, 3, 4)
    lines = explain([*rows, *changes], options, ["id"]).splitlines()
    assert lines[0] == "rows of version 2, shown as insertions"
    assert "changes of version 3, in 1 stretch" in lines
    assert "2 splits" in lines


@pytest.mark.parametrize(
    ("options", "expected"), [({}, "an error"), ({"ignoreDeletes": "true"}, "left out")]
)
def test_a_stream_of_new_values_says_what_becomes_of_deletes(
    table: Table, options: dict[str, str], expected: str
) -> None:
    read = ReadOptions.parse({"path": table.store.url, **options})
    text = explain(changes_splits(table.log, read, 1, 3), read, ["id"])
    assert f"  shown     the new values alone; a delete is {expected}\n" in text


def test_of_many_stretches_and_splits_only_the_first_are_told(table: Table) -> None:
    text = explained(table, readChangeFeed="true", startingVersion="latest")
    assert text == "nothing to read: no epoch that is asked for has rows"
    for _ in range(20):
        append(table, [1], overwrite=True)
    text = explained(table, readChangeFeed="true", splits="25")
    assert text.count("\nstretch ") == 20
    assert text.count("\n  [") == 20
    assert "\n  and 3 more\n25 splits\n" in text
    assert text.endswith("\n  and 5 more")


def test_the_page_shows_what_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_upsert.table.schema_changes.secrets.randbits", lambda bits: 7)
    columns = pa.schema({"order_id": pa.int64(), "amount": pa.int64()})
    orders = Table.create(str(tmp_path / "orders"), columns, keys=["order_id"])
    for step in (1, 4, 1000, 1000):
        keys = list(range(0, 200_000, step))
        orders.upsert(pa.table({"order_id": keys, "amount": keys}))
    page = (ROOT / "docs" / "operations.md").read_text()
    text = explained(
        orders, readChangeFeed="true", startingVersion="3", endingVersion="4", splits="2"
    )
    assert f"```text\n{text}\n```" in SIZES.sub("", page)


def planned(table: Table, **given: str) -> None:
    options = ReadOptions.parse({"path": table.store.url, "splits": "2", **given})
    BatchRead(options, read_columns(table.log, options)).splits()


def told(caplog: pytest.LogCaptureFixture, table: Table) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [message.replace(table.store.url, "PATH") for message in messages]


def test_a_planned_read_is_one_line_and_explained_at_debug(
    table: Table, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "spark_upsert.streams")
    planned(table, versionAsOf="1")
    assert told(caplog, table)[1].startswith("read planned:\nrows of version 1\n  columns ")
    caplog.clear()
    caplog.set_level(logging.INFO, "spark_upsert.streams")
    monkeypatch.delattr("spark_upsert.streams.reads.explain.explain")
    sizes = {v: table.log.at(v).bytes for v in (1, 2)}
    planned(table, versionAsOf="1")
    planned(table, readChangeFeed="true", startingVersion="2", endingVersion="2")
    counted = f"files=1 rows=100 bytes={sizes[2] - sizes[1]}"
    assert told(caplog, table) == [
        f"read planned: path=PATH snapshot=1 splits=2 files=1 rows=1000 bytes={sizes[1]}",
        f"read planned: path=PATH lower=2 upper=3 stretches=1 splits=2 {counted}",
    ]


def test_a_batch_of_a_stream_is_told_too(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_upsert")
    options = ReadOptions.parse({"path": table.store.url, "splits": "1"})
    stream = Stream(
        NamedInputs({UNNAMED: TableInput(options, read_columns(table.log, options))}), options.query
    )
    begin = stream.initial()
    middle = stream.latest(begin)
    stream.splits(begin, middle)
    append(table, [3])
    version = table.log.head()
    stream.splits(middle, stream.latest(middle))
    planned = [line for line in told(caplog, table) if line.startswith("read planned")]
    size = table.log.commit(6).added[0].bytes
    whole = version.bytes - size
    assert planned == [
        f"read planned: path=PATH snapshot=5 splits=1 files=2 rows=3 bytes={whole}",
        f"read planned: path=PATH lower=6 upper=7 stretches=1 splits=1 files=1 rows=1 bytes={size}",
    ]


def command(*arguments: str) -> str:
    return CliRunner().invoke(upsertflow, ["explain", *arguments]).output


def test_the_command_explains_rows_or_changes(table: Table) -> None:
    path = table.store.url
    assert command(path).startswith("rows of version 5\n")
    assert command(path, "--version", "2").startswith("rows of version 2\n")
    feed = "changes of versions"
    assert command(path, "--change-feed").startswith(f"{feed} 1 to 5, in 3 stretches\n")
    assert command(path, "--starting-version", "2").startswith(f"{feed} 2 to 5,")
    assert command(path, "--ending-version", "3").startswith(f"{feed} 1 to 3,")
    assert "\n  mode      none: " in command(path, "--mode", "none")
    assert "\n  columns   v\n" in command(path, "--columns", "v")
    assert "\n3 splits\n" in command(path, "--splits", "3")


def test_the_command_explains_what_a_consumer_has_yet_to_read(table: Table) -> None:
    table.hold("sums", 3)
    path = table.store.url
    assert command(path, "--consumer", "sums").startswith("changes of versions 4 to 5,")
    unknown = command(path, "--consumer", "sum")
    assert "option '--consumer' expects the name of a lease, found 'sum'" in unknown
    twice = command(path, "--consumer", "sums", "--starting-version", "2")
    assert "Say where changes begin once" in twice
    text = command(path, "--version", "2", "--starting-version", "2")
    assert text.startswith("Error: [OPTION] ")


def test_the_command_takes_any_option_of_the_read(table: Table) -> None:
    path = table.store.url
    assert command(path, "--set", "versionAsOf=2").startswith("rows of version 2\n")
    twice = command(path, "--version", "2", "--set", "VERSION_AS_OF=3")
    assert "option 'versionAsOf' is given twice, with different values" in twice
    assert "'versionAsOf' is given twice" in command(
        path, "--version", "2", "--set", "versionAsOf=2"
    )
    text = command(path, "--set", "versionAsOf")
    assert "number 1 of them, of 11 characters, is not of the form OPTION=VALUE." in text
    assert "nothing to explain" in command(path, "--set", "metadata=history")
    assert "no meaning in a batch read" in command(path, "--set", "maxRowsPerTrigger=1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"versionAsOf": "1"}, ["1 file copied; of 0 files only what is read"]),
        (
            {"startingVersion": "3", "endingVersion": "3", "readChangeFeed": "true"},
            # Of a file with 1 000 rows and of one with 100: of the latter few keys are looked up.
            ["1 file copied; of 1 file only what is read"],
        ),
    ],
    ids=str,
)
def test_what_a_read_fetches_of_a_bucket(
    given: dict[str, str], expected: list[str], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "fetched " not in explained(table, **given)
    monkeypatch.setattr("spark_upsert.streams.reads.explain.is_remote", lambda path: True)
    monkeypatch.setattr(REMOTE_RUNS, "bytes_min", 0)
    lines = [line for line in explained(table, **given).splitlines() if "fetched " in line]
    assert [line.split(maxsplit=1)[1].split(" and ")[0] for line in lines] == expected


def test_one_column_and_a_few_keys_of_a_large_file_are_read_by_ranges() -> None:
    file = RunFile(
        path="data/a.arrow",
        rows=1_000_000,
        tombstones=0,
        bytes=130 << 20,
        body_bytes=129 << 20,
        tail_crc=0,
        hash_range=ALL_HASHES,
    )
    types = {HASH: pa.uint64(), "k": pa.int64(), "text": pa.string(), DIFF: pa.int8()}
    schema = pa.schema(types)
    text_bytes = (129 << 20) - 17_000_000
    half = HashRange(0, HASH_END // 2)
    cases = [
        (Access(columns=["k", DIFF]), None, 17_000_000),
        (Access(columns=["k", DIFF], hash_range=half), None, 8_500_000),
        (Access(), None, 17_000_000 + text_bytes),
        (Access(columns=[DIFF]), 2, 2 * (66_560 + 24_000) + 2 * 66_560),
        (Access(columns=[DIFF]), 10**6, 9_000_000),
    ]
    for access, probes, cost in cases:
        assert estimate_cost(file, schema, access, probes) == cost, (access, probes)
    assert REMOTE_RUNS.is_copied(file, cases[2][2])
    assert not REMOTE_RUNS.is_copied(file, cases[0][2])
