"""The stash: what is kept does not depend on how much memory there is."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import HASH, Scope, TableSchema
from spark_upsert.table.run import file as run
from spark_upsert.table.run.rows import Rows
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.write import stage as stash_module
from spark_upsert.table.write.stage import COMPACT_BYTES, SPILL_BYTES, Stash
from tests.support.model import Command, Model
from tests.support.tables import batch_of, schema_of

TINY, SMALL = 500, 2_000
"""Bytes: less than a batch of commands, and less than all of them."""

SIZES = [
    pytest.param(COMPACT_BYTES, SPILL_BYTES, id="in memory"),
    pytest.param(TINY, SPILL_BYTES, id="settled at each batch"),
    pytest.param(TINY, TINY, id="spilled at each batch"),
    pytest.param(SMALL, SMALL, id="spilled now and then"),
    pytest.param(SMALL, TINY, id="spilled whenever settled"),
    pytest.param(COMPACT_BYTES, TINY, id="spilled once, at the seal"),
]


def workload(*, count: int = 200, keys: int = 50) -> list[Command]:
    dice = random.Random(1)
    return [
        Command(dice.randrange(keys), dice.choice([None, 1, 2, 3]), dice.randrange(40))
        for _ in range(count)
    ]


def sealed(
    schema: TableSchema, batches: Sequence[Sequence[Command]], settle: int, spill: int
) -> tuple[list[pa.RecordBatch], Counters]:
    """Seal a stash twice, the first time not to its end; both seals give the same."""
    with Stash(schema, compact_bytes=settle, spill_bytes=spill) as stash:
        for batch in batches:
            stash.add(batch_of(schema, batch))
        next(stash.seal(), None)
        result = list(stash.seal()), stash.counters
        assert (list(stash.seal()), stash.counters) == result
        return result


def cut(commands: Sequence[Command], size: int) -> list[Sequence[Command]]:
    return [commands[at : at + size] for at in range(0, len(commands), size)]


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[Command]:
    return [
        Command(row["k"], row["v"] if row["__diff"] > 0 else None, row.get("__order0", 0))
        for batch in batches
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize(("settle", "spill"), SIZES)
@pytest.mark.parametrize("scope", Scope, ids=lambda scope: f"with scope {scope.value}")
@pytest.mark.sweep(6)
def test_seal_holds_the_winner_of_each_key_by_hash(scope: Scope, settle: int, spill: int) -> None:
    commands = workload()
    batches, counters = sealed(schema_of(scope), cut(commands, 20), settle, spill)
    rows, expected = rows_of(batches), list(Model(scope).winners(commands).values())
    if scope is Scope.ARRIVAL:
        expected = [replace(command, order=0) for command in expected]
    assert sorted(rows, key=lambda c: c.key) == sorted(expected, key=lambda c: c.key)
    assert counters.rows == len(commands)
    assert counters.superseded + counters.duplicates == len(commands) - len(rows)
    hashes = [h for batch in batches for h in batch.column(HASH).to_pylist()]
    assert hashes == sorted(hashes)


def test_spilled_commands_come_out_in_bounded_batches() -> None:
    commands = workload(count=600, keys=300)
    batches, _ = sealed(schema_of(Scope.TABLE), cut(commands, 20), SMALL, SMALL)
    assert len(batches) > 1
    assert all(batch.nbytes < 4 * SMALL for batch in batches)


def test_stash_of_nothing_and_of_equal_commands() -> None:
    schema = schema_of(Scope.TABLE)
    assert sealed(schema, [[], []], TINY, TINY)[0] == []
    batches, counters = sealed(schema, [[Command(1, 10, 5)] * 2], COMPACT_BYTES, SPILL_BYTES)
    assert rows_of(batches) == [Command(1, 10, 5)]
    assert counters == Counters(rows=2, duplicates=1)


@pytest.mark.parametrize(
    ("are_distinct", "compact_bytes", "count", "moves", "held_max"),
    [
        pytest.param(False, 4_000, 1000, 2, 250, id="of the same keys: memory follows the keys"),
        # 256 batches double the settled size about 8 times; each time all rows move.
        pytest.param(True, 1, 256, 10, 2560, id="of distinct keys are moved logarithmically often"),
    ],
)
def test_rows_of_many_batches(
    are_distinct: bool,
    compact_bytes: int,
    count: int,
    moves: int,
    held_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = schema_of(Scope.ARRIVAL)
    sizes: list[int] = []
    resolve = Stash._resolve

    def measured(self: Stash, rows: Rows) -> pa.RecordBatch:
        sizes.append(len(rows))
        return resolve(self, rows)

    monkeypatch.setattr(Stash, "_resolve", measured)
    keys = 10 if are_distinct else 50
    with Stash(schema, compact_bytes=compact_bytes) as stash:
        for number in range(count):
            first = number * keys if are_distinct else 0
            stash.add(batch_of(schema, [Command(first + k, k) for k in range(keys)]))
        assert sum(b.num_rows for b in stash.seal()) == (count * keys if are_distinct else keys)
    assert max(sizes) <= held_max
    assert sum(sizes) <= moves * count * keys


@pytest.mark.parametrize("fails", [False, True], ids=["it closes", "an error"])
def test_spilled_files_are_gone_after(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    schema = schema_of(Scope.TABLE)

    def spill() -> None:
        with Stash(schema, compact_bytes=TINY, spill_bytes=TINY) as stash:
            for batch in cut(workload(), 100):
                stash.add(batch_of(schema, batch))
            assert list(tmp_path.iterdir())
            if fails:
                raise ConnectionError

    with pytest.raises(ConnectionError) if fails else nullcontext():
        spill()
    assert not list(tmp_path.iterdir())


def test_batch_is_taken_in_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spill that fails for want of space does not leave the batch inside: it comes again."""
    schema, commands = schema_of(Scope.TABLE), workload()
    failures = iter([False, True, False, True] + [False] * 100)
    write = run.write_run

    def full_now_and_then(*args: Any, **how: Any) -> Any:
        if next(failures):
            raise OSError("no space left on device")
        return write(*args, **how)

    monkeypatch.setattr(stash_module, "write_run", full_now_and_then)
    failed = 0
    with Stash(schema, compact_bytes=TINY, spill_bytes=TINY) as stash:
        for batch in cut(commands, 20):
            try:
                stash.add(batch_of(schema, batch))
            except OSError:
                failed += 1
                stash.add(batch_of(schema, batch))
        assert stash.counters.rows == 200
        assert len(rows_of(list(stash.seal()))) == len(Model(Scope.TABLE).winners(commands))
    assert failed == 2


def test_nested_values_survive_the_spill() -> None:
    value = pa.struct({"tags": pa.list_(pa.string())})
    commands = [Command(k, {"tags": ["a"] * (k % 3)}, k) for k in range(20)]
    batches, _ = sealed(schema_of(Scope.TABLE, value=value), cut(commands, 5), TINY, TINY)
    assert sorted(rows_of(batches), key=lambda c: c.key) == commands
