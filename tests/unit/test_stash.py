"""The stash: what is kept does not depend on how much memory there is."""

from __future__ import annotations

import random
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import HASH, Scope, TableSchema, Ties
from spark_upsert.table.run import file as run
from spark_upsert.table.run.rows import Rows
from spark_upsert.table.state.counters import Counters
from spark_upsert.table.write import stash as stash_module
from spark_upsert.table.write.stash import SETTLE_BYTES, SPILL_BYTES, Stash
from tests.support.model import Command, Model
from tests.support.tables import batch_of, schema_of

TINY, SMALL = 500, 2_000
"""Bytes: less than a batch of commands, and less than all of them."""

SIZES = [
    pytest.param(SETTLE_BYTES, SPILL_BYTES, id="in memory"),
    pytest.param(TINY, SPILL_BYTES, id="settled at each batch"),
    pytest.param(TINY, TINY, id="spilled at each batch"),
    pytest.param(SMALL, SMALL, id="spilled now and then"),
    pytest.param(SMALL, TINY, id="spilled whenever settled"),
    pytest.param(SETTLE_BYTES, TINY, id="spilled once, at the seal"),
]


def workload(seed: int, *, count: int = 200, keys: int = 50) -> list[Command]:
    dice = random.Random(seed)
    return [
        Command(dice.randrange(keys), dice.choice([None, 1, 2, 3]), dice.randrange(40))
        for _ in range(count)
    ]


def sealed(
    schema: TableSchema, batches: Sequence[Sequence[Command]], settle: int, spill: int
) -> tuple[list[pa.RecordBatch], Counters, str]:
    with Stash(schema, settle_bytes=settle, spill_bytes=spill) as stash:
        for batch in batches:
            stash.add(batch_of(schema, batch))
        out = list(stash.seal())
        return out, stash.counters, repr(stash)


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
def test_the_seal_holds_the_winner_of_each_key(scope: Scope, settle: int, spill: int) -> None:
    schema, commands = schema_of(scope), workload(seed=1)
    batches, counters, _ = sealed(schema, cut(commands, 20), settle, spill)
    expected = list(Model(scope).winners(commands).values())
    found = rows_of(batches)
    if scope is Scope.ARRIVAL:
        found = [Command(c.key, c.value, 0) for c in found]
        expected = [Command(c.key, c.value, 0) for c in expected]
    assert sorted(found, key=lambda c: c.key) == sorted(expected, key=lambda c: c.key)
    assert counters.rows == len(commands)
    assert counters.superseded + counters.duplicates == len(commands) - len(found)


@pytest.mark.parametrize(("settle", "spill"), SIZES)
def test_the_seal_is_sorted_by_hash_over_all_batches(settle: int, spill: int) -> None:
    batches, _, _ = sealed(schema_of(Scope.TABLE), cut(workload(1), 20), settle, spill)
    hashes = [h for batch in batches for h in batch.column(HASH).to_pylist()]
    assert hashes == sorted(hashes)


def test_spilled_commands_come_out_in_bounded_batches() -> None:
    batches, _, _ = sealed(
        schema_of(Scope.TABLE), cut(workload(1, count=600, keys=300), 20), SMALL, SMALL
    )
    assert len(batches) > 1
    assert all(batch.nbytes < 4 * SMALL for batch in batches)


def test_an_empty_stash_seals_nothing() -> None:
    assert sealed(schema_of(Scope.TABLE), [[], []], TINY, TINY)[0] == []


def test_of_equal_commands_one_is_kept_and_the_others_are_duplicates() -> None:
    batches, counters, _ = sealed(
        schema_of(Scope.TABLE), [[Command(1, 10, 5), Command(1, 10, 5)]], SETTLE_BYTES, SPILL_BYTES
    )
    assert rows_of(batches) == [Command(1, 10, 5)]
    assert counters == Counters(rows=2, duplicates=1)


@pytest.mark.parametrize(("settle", "spill"), SIZES)
@pytest.mark.parametrize(("ties", "kept"), [(Ties.LAST, 0), (Ties.FIRST, 4)], ids=str)
def test_equal_order_keys_over_batches_are_tied(
    ties: Ties, kept: int, settle: int, spill: int
) -> None:
    commands = [[Command(k, 4 - batch, 5) for k in range(9)] for batch in range(5)]
    schema = replace(schema_of(Scope.EPOCH), ties=ties)
    batches, counters, _ = sealed(schema, commands, settle, spill)
    assert {c.value for c in rows_of(batches)} == {kept}
    assert counters == Counters(rows=45, superseded=36, tied=36)


@pytest.mark.parametrize(("settle", "spill"), SIZES)
def test_without_order_the_last_over_batches_wins(settle: int, spill: int) -> None:
    commands = [[Command(k, batch) for k in range(9)] for batch in range(5)]
    batches, counters, _ = sealed(schema_of(Scope.ARRIVAL), commands, settle, spill)
    assert {c.value for c in rows_of(batches)} == {4}
    assert counters == Counters(rows=45, superseded=36)


def test_memory_follows_the_keys_and_not_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand batches of the same 50 keys never hold more than a few times 50 rows."""
    schema = schema_of(Scope.ARRIVAL)
    held = 0
    resolved = 0
    resolve = Stash._resolve

    def measured(self: Stash, rows: Rows) -> pa.RecordBatch:
        nonlocal held, resolved
        held = max(held, len(rows))
        resolved += len(rows)
        return resolve(self, rows)

    monkeypatch.setattr(Stash, "_resolve", measured)
    batch = batch_of(schema, [Command(k, k) for k in range(50)])
    with Stash(schema, settle_bytes=4 * batch.nbytes) as stash:
        for _ in range(1000):
            stash.add(batch)
        assert sum(b.num_rows for b in stash.seal()) == 50
    assert held <= 5 * 50
    assert resolved < 2 * 50_000


def test_rows_of_distinct_keys_are_moved_logarithmically_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = schema_of(Scope.ARRIVAL)
    moved = 0
    resolve = Stash._resolve

    def measured(self: Stash, rows: Rows) -> pa.RecordBatch:
        nonlocal moved
        moved += len(rows)
        return resolve(self, rows)

    monkeypatch.setattr(Stash, "_resolve", measured)
    batches = [
        batch_of(schema, [Command(k, k) for k in range(i * 10, i * 10 + 10)]) for i in range(256)
    ]
    with Stash(schema, settle_bytes=1) as stash:
        for batch in batches:
            stash.add(batch)
        assert sum(b.num_rows for b in stash.seal()) == 2560
    # 256 batches double the settled size about 8 times; each time all rows move.
    assert moved <= 2560 * 10


def test_spilled_files_are_gone_when_the_stash_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    schema = schema_of(Scope.TABLE)
    with Stash(schema, settle_bytes=TINY, spill_bytes=TINY) as stash:
        for batch in cut(workload(1), 100):
            stash.add(batch_of(schema, batch))
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_spilled_files_are_gone_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    schema = schema_of(Scope.TABLE)
    batches = iter([batch_of(schema, workload(1)), None])
    with (
        pytest.raises(AttributeError),
        Stash(schema, settle_bytes=TINY, spill_bytes=TINY) as stash,
    ):
        deque(map(stash.add, batches), maxlen=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("settle", "spill"), SIZES)
@pytest.mark.parametrize("scope", Scope, ids=lambda scope: f"with scope {scope.value}")
@pytest.mark.sweep(6)
def test_a_second_seal_gives_the_same_and_counts_nothing_twice(
    scope: Scope, settle: int, spill: int
) -> None:
    schema = schema_of(scope)
    with Stash(schema, settle_bytes=settle, spill_bytes=spill) as stash:
        for batch in cut(workload(1), 20):
            stash.add(batch_of(schema, batch))
        next(stash.seal())  # Given up before its end.
        first, counters = list(stash.seal()), stash.counters
        assert list(stash.seal()) == first
        assert stash.counters == counters


def test_a_batch_is_taken_in_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spill that fails for want of space does not leave the batch inside: it comes again."""
    schema, batches = schema_of(Scope.TABLE), cut(workload(1), 20)
    failures = iter([False, True, False, True] + [False] * 100)
    write = run.write_run

    def full_now_and_then(*args: Any, **how: Any) -> Any:
        if next(failures):
            raise OSError("no space left on device")
        return write(*args, **how)

    monkeypatch.setattr(stash_module, "write_run", full_now_and_then)
    failed = 0
    with Stash(schema, settle_bytes=TINY, spill_bytes=TINY) as stash:
        for batch in batches:
            try:
                stash.add(batch_of(schema, batch))
            except OSError:
                failed += 1
                stash.add(batch_of(schema, batch))
        assert stash.counters.rows == 200
        found = rows_of(list(stash.seal()))
    assert failed == 2
    assert len(found) == len(Model(Scope.TABLE).winners([c for b in batches for c in b]))


def test_the_repr_says_what_was_taken_in() -> None:
    _, _, text = sealed(schema_of(Scope.TABLE), [[Command(1, 1, 1), Command(1, 2, 2)]] * 2, 1, 8)
    assert text == "Stash(rows=4, superseded=2, spilled=2)"


def test_nested_values_survive_the_spill() -> None:
    value = pa.struct({"tags": pa.list_(pa.string())})
    schema = schema_of(Scope.TABLE, value=value)
    commands = [Command(k, {"tags": ["a"] * (k % 3)}, k) for k in range(20)]
    batches, _, _ = sealed(schema, cut(commands, 5), TINY, TINY)
    assert sorted(rows_of(batches), key=lambda c: c.key) == commands
