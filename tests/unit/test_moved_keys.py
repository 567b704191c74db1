"""A row whose key changed takes along what was not sent, by the headers of Debezium's records.

Recorded from Debezium 3.3.1 with PostgreSQL: both records have one ``source``; the delete, and the
record without a value after it, have the header ``__debezium.newkey``, and the create has
``__debezium.oldkey``. The header's JSON has no schema with Kafka Connect's default converter.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.debezium import OPTIONS, bare, event
from tests.support.envelopes import counters_of, records, rows_of, write
from tests.support.fuzz import FUZZ_TIMES
from tests.support.seeds import seeds
from tests.support.unchanged import decoded_by

UNSENT = "__debezium_unavailable_value"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BY_LSN = {**OPTIONS, "valueSchema": "id BIGINT, x STRING, n BIGINT", "onUnknown": "null"}
Message = tuple[int, dict[str, Any] | None, dict[str, Any]]
"""The record's key, its event, and its headers."""


def table_of(*messages: Message, text: Any = bare) -> pa.Table:
    pairs = [(bare({"id": n}), None if value is None else bare(value)) for n, value, _ in messages]
    headers = [
        [{"key": name, "value": text(value)} for name, value in each.items()]
        for *_, each in messages
    ]
    return records(pairs).append_column("headers", pa.array(headers, HEADERS))


CONTEXT = {"__debezium.context.taskId": "0"}


def put(op: str, number: int, x: str | None, n: int, lsn: int, **headers: Any) -> Message:
    return number, event(op, None, {"id": number, "x": x, "n": n}, lsn), {**CONTEXT, **headers}


def move(old: int, new: int, n: int, lsn: int) -> list[Message]:
    """Return the three records of an update that changes the key, and does not send x."""
    to = {**CONTEXT, "__debezium.newkey": {"id": new}}
    created = put("c", new, UNSENT, n, lsn, **{"__debezium.oldkey": {"id": old}})
    delete = event("d", {"id": old, "x": None, "n": None}, None, lsn)
    return [(old, delete, to), (old, None, to), created]


CREATE = put("c", 1, "a", 0, 1)
MOVED = [{"id": 2, "x": "a", "n": 5}]


@pytest.mark.parametrize(
    "order", list(itertools.permutations(range(3))), ids=lambda order: "".join(map(str, order))
)
def test_a_row_takes_its_values_to_its_new_key(tmp_path: Path, order: tuple[int, ...]) -> None:
    """In one batch, and in one of each record, as its partitions are read."""
    messages = [move(1, 2, 5, 7)[index] for index in order]
    write(tmp_path / "one", table_of(CREATE, *messages), **BY_LSN)
    assert rows_of(tmp_path / "one") == MOVED
    for message in (CREATE, *messages):
        write(tmp_path / "many", table_of(message), **BY_LSN)
    assert rows_of(tmp_path / "many") == MOVED


def test_a_record_without_a_value_moves_nothing(tmp_path: Path) -> None:
    """It has the header, too, and no order. A quarantine keeps it, to clear an error of its key."""
    with decoded_by() as batches:
        rows = table_of(CREATE, *move(1, 2, 5, 7))
        write(tmp_path / "t", rows, **BY_LSN, onError="quarantine")
    assert [batch.moved_to for batch in batches] == [[[None, 2, None, None]]]
    assert rows_of(tmp_path / "t") == MOVED


def test_a_swap_takes_each_value_to_the_other_key(tmp_path: Path) -> None:
    creates = [CREATE, put("c", 2, "b", 0, 2)]
    moves = [*move(1, -1, 1, 3), *move(2, 1, 2, 4), *move(-1, 2, 3, 5)]
    write(tmp_path / "t", table_of(*creates), **BY_LSN)
    write(tmp_path / "t", table_of(*moves), **BY_LSN)
    assert rows_of(tmp_path / "t") == [{"id": 1, "x": "b", "n": 2}, {"id": 2, "x": "a", "n": 3}]


def test_a_replay_of_a_move_changes_nothing(tmp_path: Path) -> None:
    messages = table_of(CREATE, *move(1, 2, 5, 7), put("u", 2, UNSENT, 6, 8))
    for _ in range(2):
        commit = write(tmp_path / "t", messages, **BY_LSN)
    assert rows_of(tmp_path / "t") == [{"id": 2, "x": "a", "n": 6}]
    counters = counters_of(commit)
    assert counters.inserts == counters.updates == counters.deletes == counters.unknown == 0


def unknown(path: Path, rows: pa.Table, **options: str) -> list[dict[str, Any]]:
    """Return the rows after a create and a move that carries nothing."""
    options = {**BY_LSN, **options}
    write(
        path, table_of(CREATE) if "headers" in rows.column_names else records_of(CREATE), **options
    )
    with decoded_by() as batches:
        write(path, rows, **options)
    assert [batch.moved_to for batch in batches] == [None]
    return rows_of(path)


def records_of(*messages: Message) -> pa.Table:
    return table_of(*messages).drop_columns("headers")


def wrong(_: Any) -> bytes:
    return b"\0\0\0\0\1\2"


NOTHING = {
    "no headers": (records_of(*move(1, 2, 5, 7)), {}),
    "headers that cannot be read": (table_of(*move(1, 2, 5, 7), text=wrong), {}),
    "no header of a new key": (table_of(*((n, v, CONTEXT) for n, v, _ in move(1, 2, 5, 7))), {}),
    "an order by offsets": (table_of(*move(1, 2, 5, 7)), {"sequenceBy": "partition,offset"}),
    "an order of its own in each event": (
        table_of(*move(1, 2, 5, 7)),
        {"sequenceBy": "source.lsn,ts_ms"},
    ),
    "no order across epochs": (table_of(*move(1, 2, 5, 7)), {"sequenceBy": ""}),
}


@pytest.mark.parametrize(("rows", "options"), NOTHING.values(), ids=NOTHING)
def test_nothing_is_carried_by(tmp_path: Path, rows: pa.Table, options: dict[str, str]) -> None:
    """The value is unknown, and never that of another order."""
    offsets = pa.array(range(1, 1 + len(rows)), pa.int64())
    at = rows.schema.get_field_index("offset")
    rows = rows.set_column(at, rows.schema.field(at), offsets)
    found = unknown(tmp_path / "t", rows, **options)
    assert found == [{"id": 2, "x": None, "n": 5}]


def test_a_header_may_have_a_schema(tmp_path: Path) -> None:
    """As the JSON converter writes it by default."""

    def described(value: Any) -> bytes:
        field = {"type": "int64", "optional": False, "field": "id"}
        schema = {"type": "struct", "fields": [field], "optional": False}
        return bare({"schema": schema, "payload": value})

    rows = table_of(CREATE, *move(1, 2, 5, 7), text=described)
    write(tmp_path / "t", rows, **BY_LSN)
    assert rows_of(tmp_path / "t") == MOVED


FLATTENED = {
    "envelope": "kafka",
    "keyFormat": "json",
    "keySchema": "id BIGINT",
    "valueFormat": "json",
    "applyAsDeletes": "__deleted",
    "exceptColumnList": "__op,__source_lsn",
    "valueSchema": "x STRING, n BIGINT, __deleted STRING, __op STRING, __source_lsn BIGINT",
    "onUnknown": "null",
}


def flattened(message: Message) -> Message:
    """Return the record that ExtractNewRecordState makes of one."""
    number, value, headers = message
    if value is None:
        return message
    op, lsn = value["op"], value["source"]["lsn"]
    marks = {"__deleted": "true" if op == "d" else "false", "__op": op, "__source_lsn": lsn}
    row = value["after"] or {"x": None, "n": None}
    return number, {"x": row["x"], "n": row["n"], **marks}, headers


def test_a_flattened_row_takes_its_values_along(tmp_path: Path) -> None:
    """If its order is a field of ``source``, which both of its records have."""
    delete, _, created = move(1, 2, 5, 7)
    messages = table_of(*map(flattened, (CREATE, delete, created)))
    write(tmp_path / "t", messages, **FLATTENED, sequenceBy="value.__source_lsn")
    assert rows_of(tmp_path / "t") == MOVED
    with decoded_by() as batches:
        write(tmp_path / "n", messages, **FLATTENED, sequenceBy="value.__source_lsn,offset")
    assert [batch.moved_to for batch in batches] == [None]
    assert {"id": 2, "x": None, "n": 5} in rows_of(tmp_path / "n")


def test_the_headers_of_other_records_mean_nothing(tmp_path: Path) -> None:
    """A put that has the header is no delete, and null headers are none."""
    rows = table_of(CREATE, put("u", 1, UNSENT, 5, 7, **{"__debezium.newkey": {"id": 2}}))
    write(tmp_path / "t", rows, **BY_LSN)
    assert rows_of(tmp_path / "t") == [{"id": 1, "x": "a", "n": 5}]
    rows = records_of(put("u", 1, UNSENT, 6, 8)).append_column("headers", pa.nulls(1, HEADERS))
    write(tmp_path / "t", rows, **BY_LSN)
    assert rows_of(tmp_path / "t") == [{"id": 1, "x": "a", "n": 6}]


def test_a_column_of_another_type_is_no_header(tmp_path: Path) -> None:
    for headers in (pa.array(["{}"]), pa.array([[1]]), pa.array([[{"key": "a", "n": 1}]])):
        rows = records_of(CREATE).append_column("headers", headers)
        write(tmp_path / f"{headers.type}"[:6], rows, **BY_LSN)


def test_a_key_of_several_columns_moves(tmp_path: Path) -> None:
    options = {**BY_LSN, "keys": "b,a", "valueSchema": "a BIGINT, b STRING, x STRING"}
    create = event("c", None, {"a": 1, "b": "x", "x": "v"}, 1)
    new = {"a": 2, "b": "x", "x": UNSENT}
    pair = [event("d", {"a": 1, "b": "x"}, None, 2), event("c", None, new, 2)]
    headers = [{}, {"__debezium.newkey": {"a": 2, "b": "x"}}, {}]
    messages = [(0, each, header) for each, header in zip([create, *pair], headers, strict=True)]
    write(tmp_path / "t", table_of(*messages), **options)
    assert rows_of(tmp_path / "t") == [{"a": 2, "b": "x", "x": "v"}]


@seeds(6 * FUZZ_TIMES, quick=2)
def test_random_rows_are_those_of_the_database(tmp_path: Path, seed: int) -> None:
    """Rows that change, move and go: in one batch, in order, and by two partitions of keys.

    Where one partition is ahead of the other, a value may be unknown, but never another one.
    """
    dice = random.Random(seed)
    database: dict[int, dict[str, Any]] = {}
    sent: list[Message] = []
    partitions: list[list[Message]] = [[], []]

    def send(*messages: Message) -> None:
        for message in messages:
            sent.append(message)
            partitions[message[0] % 2].append(message)

    for lsn in range(1, dice.randint(2, 60)):
        number = dice.randrange(4)
        row = database.get(number)
        if row is None:
            database[number] = {"id": number, "x": f"v{lsn}", "n": lsn}
            send(put("c", number, f"v{lsn}", lsn, lsn))
        elif dice.random() < 0.2:
            del database[number]
            send((number, event("d", {"id": number}, None, lsn), CONTEXT), (number, None, CONTEXT))
        elif dice.random() < 0.4 and (free := [n for n in range(6) if n not in database]):
            new = dice.choice(free)
            database[new] = {**database.pop(number), "id": new, "n": lsn}
            send(*move(number, new, lsn, lsn))
        else:
            x = dice.choice([UNSENT, UNSENT, None, f"v{lsn}"])
            database[number] = {"id": number, "x": row["x"] if x == UNSENT else x, "n": lsn}
            send(put("u", number, x, lsn, lsn))
    expected = sorted(database.values(), key=repr)

    def put_in_batches(name: str, messages: list[Message]) -> list[dict[str, Any]]:
        while messages:
            size = dice.choice([1, 2, 5, 20])
            write(tmp_path / name, table_of(*messages[:size]), **BY_LSN)
            messages = messages[size:]
        return rows_of(tmp_path / name)

    write(tmp_path / "one", table_of(*partitions[1], *partitions[0]), **BY_LSN)
    assert rows_of(tmp_path / "one") == expected
    assert put_in_batches("in order", sent) == expected
    ahead = [partition.copy() for partition in partitions]
    mixed = [dice.choice([p for p in ahead if p]).pop(0) for _ in sent]
    for row, known in zip(put_in_batches("mixed", mixed), expected, strict=True):
        assert row in (known, {**known, "x": None})
