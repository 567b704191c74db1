"""Laws of backlog caps: never exceeded, nothing lost, and nothing left of what is refused.

Two writers race: while one writes, the other one does at any of its steps. Consumers read on
meanwhile, and come and go.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.caps import CONSUMERS, Action, Play, act

CAPS = st.fixed_dictionaries(
    {},
    optional={
        "maxBacklogEpochs": st.integers(0, 3).map(str),
        # An epoch of these has some 1 kB.
        "maxBacklogBytes": st.sampled_from(["0", "900", "1010", "2200", "4000"]),
    },
)
CONSUMER = st.sampled_from(CONSUMERS)
ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 3)),
    st.tuples(st.just("race"), st.integers(0, 25), st.integers(1, 2)),
    st.tuples(st.just("advance"), CONSUMER, st.integers(0, 3)),
    st.tuples(st.just("release"), CONSUMER, st.just(0)),
)


@given(CAPS, st.lists(ACTIONS, max_size=14))
def test_caps_hold_and_nothing_is_lost(properties: dict[str, str], actions: list[Action]) -> None:
    play = Play(properties)
    for action in actions:
        act(play, action)
        play.require()
