"""The changelog and the snapshots tell the same story, whoever reads it and however cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.key_hash import HASH_END, HashRange
from spark_upsert.core.schema import Scope
from spark_upsert.table.changelog.read import Deduplication
from tests.support.histories import CONDITIONS, HISTORIES, Conditions, Played, Step, play, under
from tests.support.model import fold, visible
from tests.support.tables import (
    by_epoch,
    changes_of,
    pairs,
    rows_at,
    tally_of,
)

SCOPES = pytest.mark.parametrize("scope", Scope, ids=lambda scope: f"with scope {scope.value}")


def cuts_of(places: Sequence[int]) -> list[HashRange]:
    bounds = [0, *sorted(places), HASH_END]
    return list(itertools.starmap(HashRange, itertools.pairwise(bounds)))


CUTS = st.lists(
    st.integers(0, HASH_END) | st.sampled_from([0, 1, HASH_END // 2, HASH_END - 1]), max_size=3
).map(cuts_of)


@SCOPES
@given(history=HISTORIES, conditions=CONDITIONS)
def test_every_snapshot_is_the_models(
    scope: Scope, history: list[Step], conditions: Conditions
) -> None:
    with under(conditions):
        played = play(scope, history)
        assert [rows_at(played.table, v) for v in range(played.upper)] == played.rows
        for version, rows in enumerate(played.rows):
            assert played.table.log.at(version).live_rows == len(rows)


@SCOPES
@given(history=HISTORIES, conditions=CONDITIONS)
def test_the_changelog_is_the_models(
    scope: Scope, history: list[Step], conditions: Conditions
) -> None:
    with under(conditions):
        played = play(scope, history)
        every = changes_of(played.table, show=Deduplication.NONE)
        assert by_epoch(every) == by_epoch(played.changes)
        shown = changes_of(played.table, show=Deduplication.DROP_CARRYOVERS)
        assert by_epoch(shown) == by_epoch(visible(played.changes))


@SCOPES
@given(history=HISTORIES, conditions=CONDITIONS)
def test_folding_the_changelog_gives_every_snapshot(
    scope: Scope, history: list[Step], conditions: Conditions
) -> None:
    with under(conditions):
        played = play(scope, history)
        for lower in range(played.upper):
            for upper in range(lower, played.upper):
                changes = changes_of(played.table, lower + 1, upper + 1)
                assert fold(changes, rows_at(played.table, lower)) == rows_at(played.table, upper)


@SCOPES
@given(history=HISTORIES, conditions=CONDITIONS)
def test_the_changes_of_a_range_are_those_of_its_epochs(
    scope: Scope, history: list[Step], conditions: Conditions
) -> None:
    with under(conditions):
        played = play(scope, history)
        apart = [c for v in range(1, played.upper) for c in changes_of(played.table, v, v + 1)]
        assert by_epoch(changes_of(played.table)) == by_epoch(apart)


@SCOPES
@given(history=HISTORIES, conditions=CONDITIONS, cuts=CUTS)
def test_any_cut_of_the_hashes_partitions_the_snapshot(
    scope: Scope, history: list[Step], conditions: Conditions, cuts: list[HashRange]
) -> None:
    with under(conditions):
        played = play(scope, history)
        snapshot = played.table.at()
        found = [
            (row["k"], row["v"])
            for cut in cuts
            for batch in snapshot.read(hash_range=cut)
            for row in batch.to_pylist()
        ]
        assert sorted(found) == sorted(played.rows[-1].items())


@SCOPES
@given(history=HISTORIES, conditions=CONDITIONS, cuts=CUTS)
def test_any_cut_of_the_hashes_partitions_the_changelog(
    scope: Scope, history: list[Step], conditions: Conditions, cuts: list[HashRange]
) -> None:
    with under(conditions):
        played = play(scope, history)
        parts = [changes_of(played.table, hash_range=cut) for cut in cuts]
        assert by_epoch([change for part in parts for change in part]) == by_epoch(played.changes)
        for index, part in enumerate(parts):
            keys = {change.key for change in part}
            assert not any(keys & {c.key for c in other} for other in parts[index + 1 :])


@SCOPES
@given(history=HISTORIES, conditions=CONDITIONS)
def test_counters_are_what_the_changelog_shows(
    scope: Scope, history: list[Step], conditions: Conditions
) -> None:
    with under(conditions):
        played = play(scope, history)
        for version, commit in played.commits.items():
            tally = tally_of(commit)
            assert tally == played.tallies[version]
            kinds = [change.kind for change in changes_of(played.table, version, version + 1)]
            assert kinds.count("insert") == tally.inserts
            assert kinds.count("delete") == tally.deletes + tally.retracted
            assert kinds.count("update_preimage") == tally.updates
            assert kinds.count("update_postimage") == tally.updates
            assert commit.live_rows == len(played.rows[version])


@SCOPES
@given(history=HISTORIES, conditions=CONDITIONS, data=st.data())
def test_net_changes_lead_from_one_snapshot_to_the_other_by_one_step_per_key(
    scope: Scope, history: list[Step], conditions: Conditions, data: st.DataObject
) -> None:
    with under(conditions):
        played = play(scope, history)
        lower = data.draw(st.integers(0, played.upper - 1))
        upper = data.draw(st.integers(lower, played.upper - 1))
        net = changes_of(played.table, lower + 1, upper + 1, show=Deduplication.NET_CHANGES)
        before, after = played.rows[lower], played.rows[upper]
        assert fold(net, before) == after
        changed = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
        assert {change.key for change in net} == changed
        assert len(net) == sum(1 + (k in before and k in after) for k in changed)


@SCOPES
@given(history=HISTORIES, conditions=CONDITIONS)
def test_a_reader_of_some_columns_sees_the_same_rows(
    scope: Scope, history: list[Step], conditions: Conditions
) -> None:
    with under(conditions):
        played: Played = play(scope, history)
        keys = played.table.snapshot(columns=["k"]).column("k").to_pylist()
        assert sorted(keys) == sorted(played.rows[-1])
        assert pairs(played.table.snapshot(columns=["v", "k"])) == played.rows[-1]
