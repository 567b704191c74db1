"""Channel numbers: each row of the table of channel functions."""

from __future__ import annotations

import pytest

from spark_upsert.flow.graph import ChannelPath

CASES = [
    ("28 outside of any region", ChannelPath(), -1, 0, -1, 0, ()),
    ("29 one region", ChannelPath((2,), (4,)), 2, 4, 2, 4, (2,)),
    ("30 a region in a region", ChannelPath((0, 1), (3, 2)), 3, 6, 0, 3, (3, 1)),
    ("32 three levels", ChannelPath((1, 2, 1), (2, 3, 2)), 11, 12, 1, 2, (11, 5, 1)),
]


@pytest.mark.parametrize(
    ("channel", "index", "count", "local_index", "local_count", "all_levels"),
    [pytest.param(*case[1:], id=case[0]) for case in CASES],
)
def test_the_numbers_of_a_channel_are(
    channel: ChannelPath,
    index: int,
    count: int,
    local_index: int,
    local_count: int,
    all_levels: tuple[int, ...],
) -> None:
    assert (channel.index, channel.count) == (index, count)
    assert (channel.local_index, channel.local_count) == (local_index, local_count)
    assert channel.all == all_levels
