"""The manifest: a fold over commits, and slices that are cut by ranges of hashes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.key_hash import HASH_END, HashRange
from spark_upsert.core.precedence import Epoch, Interval
from spark_upsert.core.schema import Scope
from spark_upsert.errors import CorruptionError
from spark_upsert.table.log.codec import (
    commit_from_json,
    commit_to_json,
    manifest_from_json,
    manifest_to_json,
)
from spark_upsert.table.log.manifest import (
    Commit,
    Kind,
    Manifest,
    RemovedRange,
    Slice,
    Transaction,
    apply,
    is_applicable,
)
from spark_upsert.table.run.file import RunFile
from tests.support.seeds import seeds
from tests.support.tables import schema_of

SCHEMA = schema_of(Scope.TABLE)
OTHER_SCHEMA = schema_of(Scope.EPOCH)


def run(name: str, lower: int = 0, upper: int = 100) -> RunFile:
    """Return a file whose hashes are ``lower <= h < upper``."""
    return RunFile(
        path=name,
        rows=10,
        tombstones=2,
        bytes=1000,
        body_bytes=900,
        tail_crc=7,
        hash_range=HashRange(lower, upper),
    )


def commit(version: int, kind: Kind, **fields: Any) -> Commit:
    previous = f"t{version - 1}" if version else ""
    return Commit(
        version=version,
        kind=kind,
        timestamp_ms=version * 10,
        token=f"t{version}",
        previous=previous,
        **fields,
    )


CREATE = commit(0, Kind.CREATE, schema=SCHEMA)


def folded(*commits: Commit) -> Manifest:
    manifest = apply(None, CREATE)
    for each in commits:
        manifest = apply(manifest, each)
    return manifest


def shown(manifest: Manifest) -> list[tuple[str, int, int]]:
    return [(part.file.path, part.live.first, part.live.end) for part in manifest.slices]


# -- apply ---------------------------------------------------------------------------


def test_a_created_table_is_empty() -> None:
    manifest = folded()
    assert (manifest.version, manifest.upper, manifest.slices, manifest.live_rows) == (0, 1, (), 0)


def test_an_append_adds_its_runs_behind_those_before() -> None:
    manifest = folded(
        commit(1, Kind.APPEND, added=(run("a"),), live_rows=3),
        commit(2, Kind.APPEND, added=(run("b"), run("c")), live_rows=5),
    )
    assert [path for path, _, _ in shown(manifest)] == ["a", "b", "c"]
    assert [part.epochs for part in manifest.slices] == [Interval.at(1)] + [Interval.at(2)] * 2
    assert (manifest.version, manifest.timestamp_ms, manifest.live_rows) == (2, 20, 5)


def test_an_overwrite_leaves_only_its_own_runs() -> None:
    manifest = folded(
        commit(1, Kind.APPEND, added=(run("a"),)), commit(2, Kind.OVERWRITE, added=(run("b"),))
    )
    assert [path for path, _, _ in shown(manifest)] == ["b"]


def test_an_alter_changes_the_schema_and_nothing_else() -> None:
    before = folded(commit(1, Kind.APPEND, added=(run("a"),), live_rows=3))
    after = apply(before, commit(2, Kind.ALTER, schema=OTHER_SCHEMA, live_rows=3))
    assert after.schema == OTHER_SCHEMA
    assert (after.slices, after.live_rows) == (before.slices, 3)


def test_a_compaction_takes_its_runs_place() -> None:
    manifest = folded(
        commit(1, Kind.APPEND, added=(run("a"),)),
        commit(2, Kind.APPEND, added=(run("b"),)),
        commit(3, Kind.APPEND, added=(run("c"),)),
        commit(
            4,
            Kind.COMPACT,
            compacted=(Slice(file=run("ab"), epochs=Interval(lower=Epoch(1), upper=Epoch(3))),),
            taken=(taken("a"), taken("b")),
        ),
    )
    assert [path for path, _, _ in shown(manifest)] == ["ab", "c"]


def taken(path: str, lower: int = 0, upper: int = HASH_END) -> RemovedRange:
    return RemovedRange(path=path, hash_range=HashRange(lower, upper))


def test_the_last_number_of_each_writer_is_kept_for_ever() -> None:
    manifest = folded(
        commit(1, Kind.APPEND, transactions=(Transaction(writer="p", number=4),)),
        commit(2, Kind.OVERWRITE, transactions=(Transaction(writer="q", number=0),)),
        commit(3, Kind.APPEND, transactions=(Transaction(writer="p", number=5),)),
        commit(4, Kind.OVERWRITE),
    )
    assert manifest.transactions == {"p": 5, "q": 0}


@pytest.mark.parametrize(
    ("writer", "number", "answer"),
    [
        pytest.param("p", 4, True, id="the committed number"),
        pytest.param("p", 3, True, id="a number before it"),
        pytest.param("p", 5, False, id="the next number"),
        pytest.param("q", 0, False, id="the first number of another writer"),
    ],
)
def test_a_manifest_knows_its_transactions(writer: str, number: int, answer: bool) -> None:
    manifest = folded(commit(1, Kind.APPEND, transactions=(Transaction(writer="p", number=4),)))
    assert manifest.has(Transaction(writer=writer, number=number)) is answer


@pytest.mark.parametrize(
    ("manifest", "next_commit"),
    [
        pytest.param(folded(), commit(2, Kind.APPEND), id="with a gap"),
        pytest.param(folded(), commit(0, Kind.APPEND), id="that repeats a version"),
        pytest.param(folded(), commit(1, Kind.CREATE, schema=SCHEMA), id="that creates again"),
        pytest.param(None, commit(0, Kind.APPEND), id="that begins without a create"),
        pytest.param(None, commit(1, Kind.CREATE, schema=SCHEMA), id="that begins at version 1"),
        pytest.param(None, commit(0, Kind.CREATE), id="that creates without a schema"),
    ],
)
def test_a_log_is_refused(manifest: Manifest | None, next_commit: Commit) -> None:
    with pytest.raises(CorruptionError, match="_log/"):
        apply(manifest, next_commit)


def test_apply_leaves_its_argument_as_it_is() -> None:
    before = folded(commit(1, Kind.APPEND, added=(run("a"),)))
    copy = manifest_from_json(manifest_to_json(before))
    apply(before, commit(2, Kind.OVERWRITE, transactions=(Transaction(writer="p", number=1),)))
    assert before == copy


# -- cutting slices ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        pytest.param([(0, 100)], [], id="all of it"),
        pytest.param([(0, HASH_END)], [], id="more than all of it"),
        pytest.param([(0, 40)], [(40, HASH_END)], id="its lower part"),
        pytest.param([(60, HASH_END)], [(0, 60)], id="its upper part"),
        pytest.param([(40, 60)], [(0, 40), (60, HASH_END)], id="a middle part"),
        pytest.param([(10, 20), (30, 40)], [(0, 10), (20, 30), (40, HASH_END)], id="two parts"),
        pytest.param([(10, 20), (20, 30)], [(0, 10), (30, HASH_END)], id="two neighbours"),
        pytest.param([(200, 300)], [(0, 200)], id="a range beyond its hashes"),
        pytest.param([(50, 50)], [(0, 50), (50, HASH_END)], id="an empty range"),
    ],
)
def test_what_is_left_of_a_slice_after_taking_away(
    gone: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    before = folded(commit(1, Kind.APPEND, added=(run("a", 0, 100),)))
    parts = tuple(taken("a", lower, upper) for lower, upper in gone)
    after = apply(before, commit(2, Kind.COMPACT, taken=parts))
    assert covered(after) == {hash for low, high in left for hash in range(low, min(high, 100))}


def covered(manifest: Manifest) -> set[int]:
    return {h for part in manifest.slices for h in range(100) if part.overlaps(HashRange(h, h + 1))}


@given(
    ranges=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted).map(tuple)),
)
def test_taking_ranges_away_leaves_exactly_the_others(ranges: list[tuple[int, int]]) -> None:
    before = folded(
        commit(1, Kind.APPEND, added=(run("a"),)), commit(2, Kind.APPEND, added=(run("b"),))
    )
    after = apply(
        before, commit(3, Kind.COMPACT, taken=tuple(taken("a", *bounds) for bounds in ranges))
    )
    gone = {hash for low, high in ranges for hash in range(low, high)}
    slices = [part for part in after.slices if part.file.path == "a"]
    held = [h for part in slices for h in range(100) if part.overlaps(HashRange(h, h + 1))]
    assert sorted(held) == sorted(set(range(100)) - gone)
    assert any(part.file.path == "b" and part.live.end == HASH_END for part in after.slices)


@seeds(60, quick=(20,))
def test_slices_stand_in_the_order_of_their_epochs_whatever_was_compacted(seed: int) -> None:
    """What an append adds comes last, unsorted; what a compaction puts back stands between."""
    dice = random.Random(seed)
    manifest = folded()
    for version in range(1, 16):
        if len(manifest.slices) < 2 or dice.random() < 0.6:
            runs = tuple(run(f"{version}-{at}") for at in range(dice.randint(1, 3)))
            each = commit(
                version, dice.choice([Kind.APPEND, Kind.APPEND, Kind.OVERWRITE]), added=runs
            )
        else:
            first = dice.randrange(len(manifest.slices) - 1)
            old = manifest.slices[first : first + dice.randint(1, 3)]
            lower = dice.randrange(100)
            gone = HashRange(lower, dice.randint(lower + 1, 100))
            epochs = Interval(lower=old[0].epochs.lower, upper=old[-1].epochs.upper)
            merged = Slice(file=run(f"{version}", lower, gone.end), epochs=epochs, index=0)
            takes = tuple(RemovedRange(path=part.file.path, hash_range=gone) for part in old)
            each = commit(version, Kind.COMPACT, taken=takes, compacted=(merged,))
        manifest = apply(manifest, each)
        order = [(part.epochs.lower, part.index, part.live.first) for part in manifest.slices]
        assert order == sorted(order)


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        pytest.param([taken("a", 0, 40)], True, id="a live range"),
        pytest.param([taken("a", 20, 30)], True, id="a part of a live range"),
        pytest.param([taken("a", 30, 50)], False, id="a range that is partly gone"),
        pytest.param([taken("x")], False, id="a file that is gone"),
        pytest.param([taken("a", 0, 40), taken("x")], False, id="one of two that is gone"),
        pytest.param([], True, id="nothing"),
    ],
)
def test_a_compaction_fits_only_if_all_that_it_takes_is_live(
    wanted: list[RemovedRange], answer: bool
) -> None:
    manifest = folded(
        commit(1, Kind.APPEND, added=(run("a"),)),
        commit(2, Kind.COMPACT, taken=(taken("a", 40, 60),)),
    )
    assert is_applicable(manifest, wanted) is answer


@pytest.mark.parametrize(
    ("lower", "upper", "answer"),
    [
        pytest.param(0, HASH_END, True, id="all hashes"),
        pytest.param(0, 20, False, id="below its live range"),
        pytest.param(20, 21, True, id="its first live hash"),
        pytest.param(59, 60, True, id="its last hash"),
        pytest.param(60, 99, False, id="behind the last hash of the file"),
        pytest.param(30, 30, False, id="an empty range"),
    ],
)
def test_a_slice_overlaps_where_it_may_have_entries(lower: int, upper: int, answer: bool) -> None:
    part = Slice(file=run("a", 0, 60), live=HashRange(20, 80), epochs=Interval.at(1))
    assert part.overlaps(HashRange(lower, upper)) is answer


# -- forms ---------------------------------------------------------------------------

FULL = commit(
    3,
    Kind.COMPACT,
    schema=OTHER_SCHEMA,
    transactions=(Transaction(writer="p", number=2**40),),
    added=(run("a"), run("b")),
    compacted=(
        Slice(
            file=run("ab"),
            live=HashRange(2**63),
            epochs=Interval(lower=Epoch(1), upper=Epoch(3)),
            index=4,
        ),
    ),
    taken=(taken("a", 5, HASH_END),),
    counters={"rows": 3},
    live_rows=9,
)


@pytest.mark.parametrize(
    "each",
    [CREATE, commit(1, Kind.APPEND), FULL],
    ids=["a create", "an empty append", "all fields"],
)
def test_a_commit_survives_json(each: Commit) -> None:
    assert commit_from_json(json.loads(json.dumps(commit_to_json(each)))) == each


def test_a_manifest_survives_json() -> None:
    manifest = folded(
        commit(
            1, Kind.APPEND, added=(run("a"),), transactions=(Transaction(writer="p", number=1),)
        ),
        commit(2, Kind.COMPACT, taken=(taken("a", 40, 60),), live_rows=8),
    )
    assert manifest_from_json(json.loads(json.dumps(manifest_to_json(manifest)))) == manifest


def test_the_repr_of_a_manifest_says_what_a_person_asks() -> None:
    manifest = folded(commit(1, Kind.APPEND, added=(run("a"), run("b")), live_rows=1200))
    assert repr(manifest) == "Manifest(version=1, rows=1_200, slices=2, bytes=2_000)"


def test_a_file_cut_in_two_is_counted_once() -> None:
    manifest = folded(
        commit(1, Kind.APPEND, added=(run("a"),)),
        commit(2, Kind.COMPACT, taken=(taken("a", 40, 60),)),
    )
    assert len(manifest.slices) == 2
    assert manifest.bytes == 1000


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: f"a commit of kind {kind.value}")
def test_epochs_are_appends_and_overwrites(kind: Kind) -> None:
    wrong_from = 0 if kind is Kind.CLOCK else None
    assert commit(1, kind, wrong_from=wrong_from).is_epoch == (
        kind in (Kind.APPEND, Kind.OVERWRITE)
    )
