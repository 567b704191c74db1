"""Bugs in what becomes of a graph, and in its splitters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.flow import Splitter, SplitterKind, expand, graph, partitioner
from spark_upsert.flow.partitioner import Marker, RowTargets
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_graph_promises as promises

ROWS = promises.test_p5_every_row_reaches_the_replicas_that_it_should
KEYS = promises.test_p4_equal_keys_meet_whichever_replica_sends_them
TURNS = promises.test_p4_each_channel_of_an_outer_region_takes_turns_of_its_own
BATCHES = promises.test_p4_where_a_row_goes_does_not_depend_on_batches
CHANNELS = promises.test_p5_no_connection_leaves_a_channel_for_another_of_the_same_region
MARKERS = promises.test_p3_barriers_reach_every_channel_and_windows_those_of_whoever_is_in_none


@bug("every round robin begins at channel 0", ROWS)
def _() -> Patch:
    def splitter(original: Any, *args: Any) -> Splitter:
        return replace(original(*args), start=0)

    return wrapped(expand, "_splitter", splitter)


@bug("a round robin begins anew with each batch", BATCHES)
def _() -> Patch:
    def routed(original: Any, splitter: Splitter, batch: Any, turn: Any) -> RowTargets:
        return original(splitter, batch, turn)._replace(turn=turn)

    return wrapped(promises, "route", routed)


@bug("the channels of an outer region share the turn of the inner one", TURNS)
def _() -> Patch:
    def routed_on(
        original: Any, inner: Any, batch: Any, rows: Any, channels: Any, turn: Any
    ) -> Any:
        length = (len(turn) - 1) // len(inner)
        shared = (turn[0], *turn[1 : 1 + length] * len(inner))
        return original(inner, batch, rows, channels, shared)

    return wrapped(partitioner, "_route_inner", routed_on)


@bug("the first port of a region decides for all how they are split", ROWS)
def _() -> Patch:
    def kind(original: Any, region: Any, port: str) -> Any:
        first = next(iter(region.parallel.partition_by), None)
        return (SplitterKind.HASH, first.attributes) if first else original(region, port)

    return wrapped(expand, "_kind", kind)


@bug("a port that is to go to all goes in turn", ROWS)
def _() -> Patch:
    def kind(original: Any, *args: Any) -> Any:
        found, attributes = original(*args)
        is_all = found is SplitterKind.BROADCAST
        return (SplitterKind.ROUND_ROBIN if is_all else found), attributes

    return wrapped(expand, "_kind", kind)


@bug("keys of several columns are added up, whatever their order", ROWS)
def _() -> Patch:
    def codes(_: Any, columns: Any) -> Any:
        return np.sum([graph.hash_codes([each]) for each in columns], axis=0, dtype=np.uint64)

    return wrapped(partitioner, "hash_codes", codes)


@bug("an integer below zero is hashed by its amount", ROWS)
def _() -> Patch:
    def codes(original: Any, columns: Any) -> Any:
        return np.abs(original(columns).view(np.int64)).view(np.uint64)

    return wrapped(partitioner, "hash_codes", codes)


@bug("the bytes of a text have no sign", ROWS)
def _() -> Patch:
    def codes(original: Any, column: pa.Array) -> Any:
        plain = pa.array([each and each.encode("ascii", "ignore") for each in column.to_pylist()])
        return original(plain.cast(pa.binary()))

    return wrapped(graph, "_block_codes", codes)


@bug("a NULL is hashed as what lies under it", ROWS)
def _() -> Patch:
    def codes(original: Any, column: pa.Array) -> Any:
        return original(column) + np.uint64(column.null_count)

    return wrapped(graph, "_codes", codes)


@bug("where a key goes depends on how many rows come with it", KEYS)
def _() -> Patch:
    def chosen(original: Any, splitter: Splitter, batch: Any, turn: int) -> Any:
        rows, channels, after = original(splitter, batch, turn)
        return rows, (channels + turn) % splitter.width, after

    return wrapped(partitioner, "_choose_channels", chosen)


@bug("the rows of a channel are turned round", ROWS)
def _() -> Patch:
    def parts(original: Any, batch: Any, routed: RowTargets) -> Any:
        for target, part in original(batch, routed):
            yield target, part.take(pa.array(range(part.num_rows - 1, -1, -1)))

    return wrapped(promises, "iter_parts", parts)


@bug("a stream within a region is shared out among its channels", ROWS)
def _() -> Patch:
    return patch.object(expand, "_count_shared_regions", lambda producer, consumer: 0)


@bug("channels are numbered from the outermost region on", ROWS)
def _() -> Patch:
    def named(original: Any, place: Any, indexes: Any) -> str:
        return original(place, indexes[::-1])

    return wrapped(expand, "_name_at", named)


@bug("a splitter of a region keeps barriers", MARKERS)
def _() -> Patch:
    return patch.object(promises, "passes", lambda splitter, marker: splitter.passes_windows)


@bug("windows go on from one region into the next", MARKERS)
def _() -> Patch:
    def passes(_: Any, splitter: Splitter, marker: Marker) -> bool:
        return True

    return wrapped(promises, "passes", passes)


@bug("a stream out of a channel leads into the next one of the same region", CHANNELS)
def _() -> Patch:
    def named(original: Any, place: Any, indexes: Any) -> str:
        widths = [region.parallel.width for region in place.regions]
        turned = ((index + 1) % width for index, width in zip(indexes, widths, strict=True))
        return original(place, tuple(turned))

    return wrapped(expand, "_name_at", named)
