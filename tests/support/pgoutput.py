"""Statements for PostgreSQL, and the changes that the decoder must make of them.

A real server runs them (`integration.test_postgres_messages`); its messages are recorded for tests
without a server: ``python -m integration.postgres_recording``.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spark_upsert.postgres.messages import (
    COMMIT_LSN,
    OP,
    REASON,
    SEQUENCE,
    XID,
    DecodedChanges,
    LoggedTable,
    MessageDecoder,
    TableChanges,
    identity_of,
)

RECORDING = Path(__file__).with_name("pgoutput.json")

LONG, OTHER = "long " * 600, "other" * 600
"""Stored outside of the row, where an update that does not touch them does not send them."""


class _Unsent:
    def __repr__(self) -> str:
        return "UNSENT"


UNSENT = _Unsent()


@dataclass(frozen=True)
class Recorded:
    """A case: SQL before and after the slot is made, and the changes expected, in their order."""

    name: str
    tables: str
    statements: Sequence[str]
    """Each is a transaction of its own, except between ``BEGIN`` and ``COMMIT``."""
    expected: Sequence[tuple[str, str, Mapping[str, Any]]]
    """Table, operation and values; of deletes the keys only."""


_NOTES = """
CREATE TABLE notes (id int PRIMARY KEY, n int, note text);
ALTER TABLE notes ALTER note SET STORAGE EXTERNAL;
"""

_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN age AS int;
CREATE TABLE typed (
    id int PRIMARY KEY, a smallint, b bigint, c oid, d bool, e real, f double precision,
    g numeric(10, 2), h numeric(5, -2), i numeric, j text, k varchar(5), l char(4), m bytea, n uuid,
    o json, p jsonb, q date, r timestamp, s timestamptz, t time, u interval, v mood, w age,
    x int[], y text[], z numeric(6, 2)[], za timestamptz[], zb bool[], zc numeric(40, 2)
);
"""

CASES = (
    Recorded(
        "one key in one transaction, and in three",
        "CREATE TABLE a (id int PRIMARY KEY, v text);",
        [
            "BEGIN",
            "INSERT INTO a VALUES (1, 'x')",
            "UPDATE a SET v = 'y'",
            "DELETE FROM a",
            "COMMIT",
            "INSERT INTO a VALUES (1, 'z')",
            "UPDATE a SET v = NULL",
            "DELETE FROM a",
        ],
        [
            ("a", "u", {"id": 1, "v": "x"}),
            ("a", "u", {"id": 1, "v": "y"}),
            ("a", "d", {"id": 1}),
            ("a", "u", {"id": 1, "v": "z"}),
            ("a", "u", {"id": 1, "v": None}),
            ("a", "d", {"id": 1}),
        ],
    ),
    Recorded(
        "a long value left out, set to NULL, set again",
        _NOTES + f"INSERT INTO notes VALUES (1, 0, '{LONG}');",
        [
            "UPDATE notes SET n = 1",
            "UPDATE notes SET note = NULL",
            f"UPDATE notes SET note = '{OTHER}'",
        ],
        [
            ("notes", "u", {"id": 1, "n": 1, "note": UNSENT}),
            ("notes", "u", {"id": 1, "n": 1, "note": None}),
            ("notes", "u", {"id": 1, "n": 1, "note": OTHER}),
        ],
    ),
    Recorded(
        "keys that move, with a long value and in a chain",
        _NOTES + f"INSERT INTO notes VALUES (1, 0, '{LONG}');",
        [
            "UPDATE notes SET id = 2",
            "BEGIN",
            "UPDATE notes SET id = 3, note = 's'",
            "UPDATE notes SET id = 4",
            "COMMIT",
        ],
        [
            ("notes", "d", {"id": 1}),
            ("notes", "u", {"id": 2, "n": 0, "note": UNSENT}),
            ("notes", "d", {"id": 2}),
            ("notes", "u", {"id": 3, "n": 0, "note": "s"}),
            ("notes", "d", {"id": 3}),
            ("notes", "u", {"id": 4, "n": 0, "note": "s"}),
        ],
    ),
    Recorded(
        "what is rolled back",
        "CREATE TABLE a (id int PRIMARY KEY, v text);",
        [
            "BEGIN",
            "INSERT INTO a VALUES (1, 'x')",
            "SAVEPOINT s",
            "INSERT INTO a VALUES (2, 'y')",
            "ROLLBACK TO s",
            "SAVEPOINT s2",
            "INSERT INTO a VALUES (3, 'z')",
            "RELEASE s2",
            "COMMIT",
            "BEGIN",
            "INSERT INTO a VALUES (4, 'x')",
            "ROLLBACK",
        ],
        [("a", "u", {"id": 1, "v": "x"}), ("a", "u", {"id": 3, "v": "z"})],
    ),
    Recorded(
        "a truncate of two tables, and rows after it",
        "CREATE TABLE a (id int PRIMARY KEY, v text);"
        "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a);"
        "INSERT INTO a VALUES (1, 'x'); INSERT INTO b VALUES (1, 1);",
        ["BEGIN", "TRUNCATE a CASCADE", "INSERT INTO a VALUES (2, 'y')", "COMMIT"],
        [("a", "t", {}), ("a", "u", {"id": 2, "v": "y"}), ("b", "t", {})],
    ),
    Recorded(
        "a column added between rows of one transaction",
        "CREATE TABLE a (id int PRIMARY KEY, v text);",
        [
            "BEGIN",
            "INSERT INTO a VALUES (1, 'x')",
            "ALTER TABLE a ADD w int DEFAULT 7",
            "INSERT INTO a VALUES (2, 'y')",
            "ALTER TABLE a DROP v",
            "DELETE FROM a",
            "COMMIT",
        ],
        [
            ("a", "u", {"id": 1, "v": "x"}),
            ("a", "u", {"id": 2, "v": "y", "w": 7}),
            ("a", "d", {"id": 1}),
            ("a", "d", {"id": 2}),
        ],
    ),
    Recorded(
        "replica identity full",
        _NOTES + f"INSERT INTO notes VALUES (1, 0, '{LONG}'), (5, 0, NULL);"
        "ALTER TABLE notes REPLICA IDENTITY FULL;",
        [
            "UPDATE notes SET n = 1",
            "UPDATE notes SET id = 2 WHERE id = 1",
            "DELETE FROM notes WHERE id = 2",
        ],
        [
            ("notes", "u", {"id": 1, "n": 1, "note": LONG}),
            ("notes", "u", {"id": 5, "n": 1, "note": None}),
            ("notes", "d", {"id": 1}),
            ("notes", "u", {"id": 2, "n": 1, "note": LONG}),
            ("notes", "d", {"id": 2}),
        ],
    ),
    Recorded(
        "replica identity of another index, and a primary key that changes",
        "CREATE TABLE a (id int PRIMARY KEY, code text NOT NULL, v text);"
        "CREATE UNIQUE INDEX by_code ON a (code); ALTER TABLE a REPLICA IDENTITY USING INDEX by_code;"
        "INSERT INTO a VALUES (1, 'one', 'x');",
        ["UPDATE a SET id = 2", "UPDATE a SET code = 'two'", "DELETE FROM a"],
        [
            ("a", "u", {"id": 2, "code": "one", "v": "x"}),
            ("a", "d", {"code": "one"}),
            ("a", "u", {"id": 2, "code": "two", "v": "x"}),
            ("a", "d", {"code": "two"}),
        ],
    ),
    Recorded(
        "a long key that stays, in a key of two columns",
        "CREATE TABLE a (k text, id int, v int, PRIMARY KEY (k, id));"
        "ALTER TABLE a ALTER k SET STORAGE EXTERNAL;"
        f"INSERT INTO a VALUES ('{LONG[:2500]}', 1, 0);",
        ["UPDATE a SET v = 1", "UPDATE a SET id = 2"],
        [
            ("a", "u", {"k": LONG[:2500], "id": 1, "v": 1}),
            ("a", "d", {"k": LONG[:2500], "id": 1}),
            ("a", "u", {"k": LONG[:2500], "id": 2, "v": 1}),
        ],
    ),
    Recorded(
        "keys that are zeros of both signs",
        "CREATE TABLE a (id float8 PRIMARY KEY, v text); INSERT INTO a VALUES (0, 'x');",
        ["UPDATE a SET id = '-0'", "UPDATE a SET id = 1"],
        [
            ("a", "u", {"id": 0.0, "v": "x"}),
            ("a", "d", {"id": 0.0}),
            ("a", "u", {"id": 1.0, "v": "x"}),
        ],
    ),
    Recorded(
        "usual values of each type",
        _TYPES,
        [
            (
                "INSERT INTO typed VALUES (1, -1, 9223372036854775807, 4294967295, true, 'NaN', "
                "'-Infinity', -12345678.90, 12345, 1.500, 'é\n', 'abc', 'ab', '\\x00ff', "
                "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{\"a\": 1, \"a\": 2}', '{\"b\":1}', "
                "'2026-02-01', '2026-02-01 03:04:05.1', '2026-02-01 03:04:05.1+05:30', '24:00:00', "
                "'1 year 2 mons -3 days 04:05:06.789', 'glad', 41, '[0:1]={5,NULL}', "
                '\'{"a,b","\\"q\\"","NULL",NULL,"","c\\\\d"}\', \'{1.1,2.22}\', '
                "'{2026-02-01 00:00+00}', '{t,f,NULL}', 1)"
            ),
            "INSERT INTO typed (id, x, y) VALUES (2, '{}', '{}')",
        ],
        [
            (
                "typed",
                "u",
                {
                    "id": 1,
                    "a": -1,
                    "b": 9223372036854775807,
                    "c": 4294967295,
                    "d": True,
                    "e": "nan",
                    "f": "-inf",
                    "g": "-12345678.90",
                    "h": "12300",
                    "i": "1.500",
                    "j": "é\n",
                    "k": "abc",
                    "l": "ab  ",
                    "m": b"\0\xff",
                    "n": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
                    "o": '{"a": 1, "a": 2}',
                    "p": '{"b": 1}',
                    "q": "2026-02-01",
                    "r": "2026-02-01 03:04:05.100000",
                    "s": "2026-01-31 21:34:05.100000+00:00",
                    "t": "24:00:00",
                    "u": "1 year 2 mons -3 days +04:05:06.789",
                    "v": "glad",
                    "w": 41,
                    "x": [5, None],
                    "y": ["a,b", '"q"', "NULL", None, "", "c\\d"],
                    "z": ["1.10", "2.22"],
                    "zb": [True, False, None],
                    "za": ["2026-02-01 00:00:00+00:00"],
                    "zc": "1.00",
                },
            ),
            ("typed", "u", {"id": 2, "x": [], "y": []}),
        ],
    ),
    Recorded(
        "values without an Arrow form",
        _TYPES,
        [
            "INSERT INTO typed (id, q) VALUES (1, 'infinity'), (2, '0044-03-15 BC')",
            "INSERT INTO typed (id, r) VALUES (3, '20000-01-01 00:00:00')",
            "INSERT INTO typed (id, g) VALUES (4, 'NaN')",
            "INSERT INTO typed (id, x) VALUES (5, '{{1,2},{3,4}}')",
        ],
        [
            ("typed", "u", {"id": 1, REASON: "column 'q' holds what is no date32[day] (date)"}),
            ("typed", "u", {"id": 2, REASON: "column 'q' holds what is no date32[day] (date)"}),
            (
                "typed",
                "u",
                {"id": 3, REASON: "column 'r' holds what is no timestamp[us] (timestamp)"},
            ),
            (
                "typed",
                "u",
                {"id": 4, REASON: "column 'g' holds what is no decimal128(10, 2) (numeric)"},
            ),
            (
                "typed",
                "u",
                {"id": 5, REASON: "column 'x' holds what is no list<item: int32> (int4[])"},
            ),
        ],
    ),
)


def flat(changes: Iterable[DecodedChanges]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return decoded changes of a database, tables by name and each in the order of its log."""
    tables: dict[str, list[tuple[int, int, str, dict[str, Any]]]] = {}
    for decoded in changes:
        for table in decoded.tables:
            tables.setdefault(table.relation.name, []).extend(_rows(table))
    return [
        (name, op, values)
        for name in sorted(tables)
        for _, _, op, values in sorted(tables[name], key=lambda row: row[:3])
    ]


def _rows(table: TableChanges) -> Iterable[tuple[int, int, str, dict[str, Any]]]:
    unsent = {name: np.flatnonzero(where) for name, where in table.unchanged.items()}
    for index, row in enumerate(table.rows.to_pylist()):
        lsn, sequence, op, _ = (row.pop(name) for name in (COMMIT_LSN, SEQUENCE, OP, XID))
        shown = row.keys() if op == "u" else table.keys if op == "d" else ()
        values = {name: row[name] for name in row if name in shown or row[name] is not None}
        if values.get(REASON) is None:
            values.pop(REASON, None)
        values |= {name: UNSENT for name, rows in unsent.items() if index in rows}
        yield lsn, sequence, op, values


def check(case: Recorded, changes: Iterable[DecodedChanges]) -> None:
    """Hold decoded changes against a case: numbers with a point and times by their texts."""
    found = flat(changes)
    assert [(table, op) for table, op, _ in found] == [(t, op) for t, op, _ in case.expected]
    for (_, _, values), (_, _, expected) in zip(found, case.expected, strict=True):
        # Columns that a case does not name are NULL.
        wanted = {**dict.fromkeys(values), **expected}
        assert {name: _shown(value, wanted[name]) for name, value in values.items()} == wanted


def _shown(value: Any, wanted: Any) -> Any:
    if isinstance(value, list) and isinstance(wanted, list):
        pairs = itertools.zip_longest(value, wanted)
        return [_shown(item, wanted_item) for item, wanted_item in pairs]
    return str(value) if isinstance(wanted, str) else value


def read(messages: Sequence[bytes], cuts: Sequence[int] = ()) -> list[DecodedChanges]:
    """Decode messages in the pieces that cuts make of them."""
    decoder = MessageDecoder(keys_of=_keys)
    return [
        decoder.decode(messages[first:end])
        for first, end in itertools.pairwise([0, *cuts, len(messages)])
    ]


def _keys(relation: LoggedTable) -> tuple[str, ...]:
    return ("id",) if relation.identity == "f" else identity_of(relation)


def save(recordings: Mapping[str, Sequence[bytes]]) -> None:
    """Write the recording."""
    texts = {
        name: [base64.b64encode(message).decode() for message in messages]
        for name, messages in recordings.items()
    }
    RECORDING.write_text(json.dumps(texts, indent=0) + "\n")


def load() -> dict[str, list[bytes]]:
    """Read the recording: messages by the name of their case."""
    texts = json.loads(RECORDING.read_text())
    return {name: [base64.b64decode(text) for text in of_case] for name, of_case in texts.items()}
