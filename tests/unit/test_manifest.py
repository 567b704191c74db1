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
    sizes: dict[str, Any] = {
        "rows": 10,
        "tombstones": 2,
        "bytes": 1000,
        "body_bytes": 900,
        "tail_crc": 7,
    }
    return RunFile(path=name, hash_range=HashRange(lower, upper), **sizes)


def commit(version: int, kind: Kind, *added: str, **fields: Any) -> Commit:
    """Return a commit that adds runs of these names."""
    return Commit(
        version=version,
        kind=kind,
        timestamp_ms=version * 10,
        token=f"t{version}",
        previous=f"t{version - 1}" if version else "",
        added=tuple(run(name) for name in added),
        **fields,
    )


def taken(path: str, lower: int = 0, upper: int = HASH_END) -> RemovedRange:
    return RemovedRange(path=path, hash_range=HashRange(lower, upper))


def of(writer: str, number: int) -> Transaction:
    return Transaction(writer=writer, number=number)


CREATE = commit(0, Kind.CREATE, schema=SCHEMA)


def folded(*commits: Commit) -> Manifest:
    manifest = apply(None, CREATE)
    for each in commits:
        manifest = apply(manifest, each)
    return manifest


def paths(manifest: Manifest) -> list[str]:
    return [part.file.path for part in manifest.slices]


# -- apply ---------------------------------------------------------------------------


def test_last_number_of_each_writer_is_kept_for_ever() -> None:
    manifest = folded(
        commit(1, Kind.APPEND, transactions=(of("p", 4),)),
        commit(2, Kind.OVERWRITE, transactions=(of("q", 0),)),
        commit(3, Kind.APPEND, transactions=(of("p", 5),)),
        commit(4, Kind.OVERWRITE),
    )
    assert manifest.transactions == {"p": 5, "q": 0}
    answers = {("p", 5): True, ("p", 4): True, ("p", 6): False, ("r", 0): False}
    assert {each: manifest.has(of(*each)) for each in answers} == answers


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


# -- cutting slices ------------------------------------------------------------------


@given(
    ranges=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted).map(tuple)),
)
def test_taking_ranges_away_leaves_exactly_the_others(ranges: list[tuple[int, int]]) -> None:
    before = folded(commit(1, Kind.APPEND, "a"), commit(2, Kind.APPEND, "b"))
    takes = tuple(taken("a", *bounds) for bounds in ranges)
    after = apply(before, commit(3, Kind.COMPACT, taken=takes))
    gone = {hash for low, high in ranges for hash in range(low, high)}
    slices = [part for part in after.slices if part.file.path == "a"]
    left = [h for part in slices for h in range(100) if part.overlaps(HashRange(h, h + 1))]
    assert sorted(left) == sorted(set(range(100)) - gone)
    assert any(part.file.path == "b" and part.live.end == HASH_END for part in after.slices)


@seeds(60, quick=(20,))
def test_slices_stand_in_the_order_of_their_epochs_whatever_was_compacted(seed: int) -> None:
    """What an append adds comes last, unsorted; what a compaction puts back stands between."""
    dice = random.Random(seed)
    manifest = folded()
    for version in range(1, 16):
        if len(manifest.slices) < 2 or dice.random() < 0.6:
            names = [f"{version}-{at}" for at in range(dice.randint(1, 3))]
            kind = dice.choice([Kind.APPEND, Kind.APPEND, Kind.OVERWRITE])
            each = commit(version, kind, *names)
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
        commit(1, Kind.APPEND, "a"), commit(2, Kind.COMPACT, taken=(taken("a", 40, 60),))
    )
    assert is_applicable(manifest, wanted) is answer


# -- forms ---------------------------------------------------------------------------

FULL = commit(
    3,
    Kind.COMPACT,
    "a",
    "b",
    schema=OTHER_SCHEMA,
    transactions=(of("p", 2**40),),
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


def test_commits_and_manifests_survive_json() -> None:
    for each in (CREATE, commit(1, Kind.APPEND), FULL):
        assert commit_from_json(json.loads(json.dumps(commit_to_json(each)))) == each
    manifest = folded(
        commit(1, Kind.APPEND, "a", transactions=(of("p", 1),)),
        commit(2, Kind.COMPACT, taken=(taken("a", 40, 60),), live_rows=8),
    )
    assert manifest_from_json(json.loads(json.dumps(manifest_to_json(manifest)))) == manifest
    assert len(manifest.slices) == 2
    assert manifest.bytes == 1000, "a file cut in two is counted once"


def test_epochs_are_appends_and_overwrites() -> None:
    for kind in Kind:
        wrong_from = 0 if kind is Kind.CLOCK else None
        is_epoch = kind in (Kind.APPEND, Kind.OVERWRITE)
        assert commit(1, kind, wrong_from=wrong_from).is_epoch == is_epoch
