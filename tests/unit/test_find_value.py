"""Where a value still is: in files of every kind, and nowhere once a person is deleted."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from integration.pages import code_of
from spark_upsert.cli.commands import upsertflow
from spark_upsert.cli.find_value import BYTES, PARTS, sightings
from spark_upsert.core.schema import ErrorPolicy
from spark_upsert.errors import DataError
from spark_upsert.plan import agg
from spark_upsert.store import LocalStore
from spark_upsert.store.cache import CopyFile, LocalCopies
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan

PAGE = "docs/history.md"
HERE = "tests/unit/test_find_value.py"
MAIL = "ada@example.org"

ROWS = pa.table(
    {
        "email": [MAIL, "bob@example.org"],
        "note": [None, f"wrote to {MAIL} twice"],
        "raw": [b"\x00" + MAIL.encode(), b""],
        "n": [1815, 7],
        "price": [Decimal("18.15"), None],
        "born": [date(1815, 12, 10), None],
        "tags": [["x", MAIL], []],
        "home": [{"email": MAIL, "zip": 1815}, None],
        "by": pa.array([[("a", MAIL)], []], pa.map_(pa.string(), pa.string())),
        "kind": pa.array([MAIL, "x"]).dictionary_encode(),
    }
)


def found(folder: Path, value: str, column: str | None = None) -> dict[tuple[str, str], int]:
    each = sightings(LocalStore(str(folder)), value, column=column)
    return {(s.path, s.column): s.values for s in each}


def test_local_copies_are_searched_and_parts_of_files_are_always_listed(tmp_path: Path) -> None:
    def fetch(file: CopyFile) -> int:
        file.write_at(data, 0)
        return len(data)

    arrow(tmp_path / "a.arrow")
    data = (tmp_path / "a.arrow").read_bytes()
    copies = LocalCopies(tmp_path / "cache")
    copies.map("whole", fetch)
    copies.read_ranges("part", [(0, 1024)], len(data), lambda _: [data[:1024]])
    names = {path.name: path for path in copies.folder().iterdir()}
    assert sorted(names) == ["part.blocks", "whole"]
    by_column = {Path(path).name: column for path, column in found(copies.folder(), "1815", "n")}
    assert by_column == {"whole": "n", "part.blocks": PARTS}


def arrow(path: Path) -> None:
    with pa.ipc.new_file(path, ROWS.schema) as sink:
        sink.write_table(ROWS)


def parquet(path: Path) -> None:
    pq.write_table(ROWS, path, compression="zstd", write_statistics=False)


@pytest.mark.parametrize("write", [arrow, parquet])
@pytest.mark.parametrize(
    ("value", "columns"),
    [
        (MAIL, {"email", "note", "raw", "tags", "by", "kind"}),
        ("1815", {"n", "zip"}),
        ("18.15", {"price"}),
        ("1815-12-10", {"born"}),
        ("nobody", set()),
    ],
)
def test_values_of_every_type_are_found(
    tmp_path: Path, write: Callable[[Path], None], value: str, columns: set[str]
) -> None:
    (tmp_path / "below" / "deep").mkdir(parents=True)
    write(tmp_path / "below" / "deep" / "file.of-any-name")
    assert {column for _, column in found(tmp_path, value)} == columns
    assert {path for path, _ in found(tmp_path, value)} <= {"below/deep/file.of-any-name"}


def test_one_column_alone(tmp_path: Path) -> None:
    arrow(tmp_path / "f")
    assert found(tmp_path, "1815", "N") == {("f", "n"): 1}
    assert found(tmp_path, MAIL, "home") == {("f", "home"): 1}
    assert not found(tmp_path, "1815", "email")


INNER = json.dumps({"minValues": {"email": MAIL}})


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (json.dumps({"a": [{"email": MAIL}]}), {"email", BYTES}),
        ("{}\n" + json.dumps({"add": {"stats": INNER}}), {"email", BYTES}),
        (json.dumps({"low_water": base64.b64encode(f"...{MAIL}...".encode()).decode()}), {BYTES}),
        (f"no format at all, {MAIL}", {BYTES}),
        (json.dumps({"email": "a da@example.org"}), set()),
    ],
    ids=["a record", "JSON within JSON", "Base64", "bytes", "another"],
)
def test_texts(tmp_path: Path, text: str, columns: set[str]) -> None:
    (tmp_path / "x").write_text(text)
    assert {column for _, column in found(tmp_path, MAIL)} == columns


def test_a_name_of_other_letters_is_found_as_json_escapes_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("# " + json.dumps({"name": "Zoë"}))
    assert found(tmp_path, "Zoë") == {}  # Of three letters: too short for bytes.
    (tmp_path / "x").write_text("# " + json.dumps({"name": "Zoë Ünal"}))
    assert found(tmp_path, "Zoë Ünal") == {("x", BYTES): 1}
    pq.write_table(pa.table({"email": [MAIL]}), tmp_path / "p")
    assert found(tmp_path, MAIL) == {("p", "email"): 3}, "with the bounds that Parquet keeps"


def test_files_under_temporary_names_are_read(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema({"email": pa.string()}), keys=["email"])
    table.upsert(pa.table({"email": [MAIL]}))
    [run] = (tmp_path / "t" / "data").iterdir()
    run.rename(run.with_name(f".tmp-{'0' * 32}"))
    assert [path for path, _ in found(tmp_path, MAIL)] == [f"t/data/.tmp-{'0' * 32}"]


def test_a_row_in_quarantine_goes_with_a_delete_of_its_key(tmp_path: Path) -> None:
    columns = pa.schema({"email": pa.string(), "n": pa.int64()})
    how: dict[str, Any] = {"keys": ["email"], "on_error": ErrorPolicy.QUARANTINE}
    table = Table.create(
        str(tmp_path / "t"), columns, properties={"tombstoneRetention": "0 epochs"}, **how
    )
    table.upsert(pa.table({"email": [MAIL, "bob"], "n": ["no number", "7"]}))
    assert {column for _, column in found(tmp_path, MAIL)} >= {"email"}
    table.upsert(pa.table({"email": [MAIL], "n": [0], "gone": [True]}), deletes="gone")
    clean(table)
    assert not found(tmp_path, MAIL)
    assert table.snapshot().num_rows == 1


def clean(table: Table) -> None:
    table.compact(full=True)
    table.expire(retain_versions=0, safety_ms=0)
    table.vacuum(grace_ms=0)


def test_the_command_says_where_and_exits_with_1(tmp_path: Path) -> None:
    arrow(tmp_path / "f")
    done = CliRunner().invoke(upsertflow, ["find", str(tmp_path), "1815-12-10", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.output) == {"path": "f", "column": "born", "values": 1}
    assert CliRunner().invoke(upsertflow, ["find", str(tmp_path), "nobody"]).exit_code == 0


ORDERS = pytest.mark.parametrize("is_ordered", [True, False], ids=["sequenceBy", "by arrival"])


@pytest.mark.slow
@ORDERS
def test_the_page_deletes_a_person(tmp_path: Path, is_ordered: bool) -> None:
    made, cleaned, _ = python(tmp_path, is_ordered=is_ordered)
    names: dict[str, Any] = {}
    exec(made, names)
    everywhere = {path.split("/")[1] for path, _ in found(tmp_path, MAIL)}
    assert everywhere == {"_delta", "_index", "data"}
    exec(cleaned, names)
    assert not found(tmp_path, MAIL)
    eve = pa.table({"email": ["eve@example.org"], "name": ["Eve"], "at": [7]})
    with pytest.raises(DataError, match="late") if is_ordered else nullcontext():
        names["people"].upsert(eve)
    names["people"].upsert(eve, late_rows=LateRows.APPLY)
    assert sorted(names["people"].snapshot().column("name").to_pylist()) == ["Bob", "Eve"]
    assert (tmp_path / "people" / "_delta").exists(), "it is published again"
    assert names["people"].check().findings == ()
    (shell,) = code_of(PAGE, "sh", runner=HERE)
    for line in shell.replace("/lake", str(tmp_path)).splitlines():
        program = Path(sys.executable).parent / "upsertflow"
        words = [str(program), *line.split()[1:]]
        assert subprocess.run(words, capture_output=True, check=False).returncode == 0, line


@ORDERS
def test_a_lease_of_a_kept_table_holds_a_person_until_it_is_past_the_merge(
    tmp_path: Path, is_ordered: bool
) -> None:
    made, cleaned, behind = python(tmp_path, is_ordered=is_ordered)
    names: dict[str, Any] = {}
    exec(made, names)
    view = Plan.of_table(str(tmp_path / "people")).group_by("name").agg(n=agg.count())
    names["names"] = view
    view.refresh(str(tmp_path / "names"))
    first, _, rest = cleaned.partition("\n\n")
    deleted, _, rest = rest.partition("\n\n")
    exec(f"{first}\n{deleted}", names)
    view.refresh(str(tmp_path / "names"))
    exec(rest, names)
    assert found(tmp_path / "people", MAIL)
    exec(behind, names)
    assert not found(tmp_path / "people", MAIL)
    assert not found(tmp_path / "names", "Ada", "name")
    groups = Plan.of_table(str(tmp_path / "names")).to_arrow().to_pylist()
    assert [row["name"] for row in groups] == ["Bob"]
    for code in (cleaned, behind):
        exec(code.replace(MAIL, "bob@example.org"), names)
    assert not found(tmp_path / "people", "bob@example.org")
    assert not names["people"].snapshot().num_rows


def python(folder: Path, *, is_ordered: bool) -> list[str]:
    """Return the code of the page, for a table with or without an order."""
    blocks = [
        code.replace('"/lake/', f'"{folder}/') for code in code_of(PAGE, "python", runner=HERE)
    ]
    ordered = '    sequence_by=["at"],\n'
    assert ordered in blocks[0]
    return blocks if is_ordered else [code.replace(ordered, "") for code in blocks]
