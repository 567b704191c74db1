"""Leaves of checkpoints as files: what is decoded, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from spark_upsert.core.key_hash import HashRange
from spark_upsert.errors import CorruptionError, NewerFormatError
from spark_upsert.store.records import MALFORMED, encode, read_record
from spark_upsert.table.log import slices, storage
from spark_upsert.table.log.codec import (
    LEAVES,
    checkpoint_path,
    leaf_from_arrow,
    leaf_to_arrow,
    manifest_from_json,
)
from spark_upsert.table.log.slices import Leaf
from spark_upsert.table.log.storage import read_checkpoint
from spark_upsert.table.run.file import HotPrefix
from tests.promises.test_leaf_promises import filled
from tests.unit.test_slices import made

EVERY = 5


@pytest.fixture(autouse=True)
def _small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", EVERY)
    monkeypatch.setattr(slices, "LEAF_SLICES", 4)


def test_an_earlier_release_refuses_a_checkpoint_with_leaves() -> None:
    _, store = filled(10)
    with pytest.raises(NewerFormatError):
        read_record(store, checkpoint_path(10), manifest_from_json)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: b""],
    ids=["a shorter leaf", "another byte", "an empty leaf"],
)
def test_damage_names_the_leaf(damage: Callable[[bytes], bytes]) -> None:
    _, store = filled(10)
    path = max(store.leaves())
    store.objects[path] = damage(store.objects[path])
    with pytest.raises(CorruptionError, match=re.escape(path)):
        read_checkpoint(store, 10)


def test_a_leaf_has_the_slices_that_no_record_represents() -> None:
    plain = made(3, 1, 2, HashRange(5, 9))
    kinds = [
        plain,
        replace(plain, file=replace(plain.file, path="data/other.arrow")),
        replace(plain, file=replace(plain.file, hash_range=HashRange(0, 1 << 40), crowds=())),
        replace(
            plain,
            file=replace(
                plain.file, hash_range=HashRange(7 << 32, 8 << 32), crowds=(HotPrefix(7, 3),)
            ),
        ),
        replace(plain, is_held=True, index=9),
    ]
    leaf = Leaf.of(kinds)
    decoded = leaf_from_arrow(leaf_to_arrow(leaf))
    assert decoded == leaf
    assert decoded.slices() == kinds
    assert [item is not None for item in decoded.irregular_slices] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", 0),
        ("rows", 2**63),
        ("tombstones", 50),
        ("errors", 50),
        ("tail_bytes", 5000),
        ("hash_first", 2**63),
        ("live_first", 2**63),
        ("lower", 9),
        ("upper", 2**63),
        ("index", 2**63),
        ("is_held", 2),
    ],
)
def test_a_leaf_is_refused_with_an_impossible(field: str, value: int) -> None:
    slice_ = made(3, 1, 2, HashRange(5, 9))
    rows = Leaf.of([slice_, replace(slice_, live=HashRange(5, 9))]).rows.copy()
    rows[field][1] = value
    with pytest.raises(MALFORMED):
        leaf_from_arrow(leaf_to_arrow(Leaf(rows)))


def test_a_leaf_is_refused_whose_record_differs_from_its_slice() -> None:
    leaf = Leaf.of([replace(made(3, 1, 2, HashRange(5, 9)), live=HashRange(2, 2))])
    rows = leaf.rows.copy()
    rows["upper"] = 7
    with pytest.raises(MALFORMED):
        leaf_from_arrow(leaf_to_arrow(Leaf(rows, np.array(leaf.irregular_slices, np.object_))))


@pytest.mark.parametrize("path", ["data/x.arrow", "_manifest/../x.arrow", f"{LEAVES}/1.arrow"])
def test_a_checkpoint_is_refused_with_a_leaf_in_another_place(path: str) -> None:
    _, store = filled(10)
    name = checkpoint_path(10)
    record = json.loads(store.objects[name])
    del record["crc"]
    record["leaves"][0][0] = path
    store.objects[name] = encode(record)
    with pytest.raises(CorruptionError, match=re.escape(name)):
        read_checkpoint(store, 10)
