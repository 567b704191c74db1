"""What a streaming flow remembers beside its checkpoint, and what becomes of a damaged memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_upsert.errors import CorruptionError, GraphError
from spark_upsert.flow import Flow, Graph
from spark_upsert.flow.rescale import NAME, remember
from tests.support.flows import SINK, SOURCE


def graph(*sources: str) -> Graph:
    flow = Flow()
    for name in sources:
        flow.sink(f"{name}_kept", SINK, flow.source(name, SOURCE))
    return flow.graph()


def test_a_flow_has_one_name_under_one_checkpoint(tmp_path: Path) -> None:
    first = remember(graph("a", "b"), str(tmp_path / "one"), {})
    assert remember(graph("a", "b"), str(tmp_path / "one"), {}) == first
    assert remember(graph("a", "b"), str(tmp_path / "other"), {}) != first


@pytest.mark.parametrize("others", [("b", "a"), ("a",), ("a", "b", "c")], ids=str)
def test_other_sources_are_refused(tmp_path: Path, others: tuple[str, ...]) -> None:
    remember(graph("a", "b"), str(tmp_path), {})
    with pytest.raises(GraphError, match="had the sources a, b"):
        remember(graph(*others), str(tmp_path), {})


def test_a_damaged_memory_is_an_error_wherever_it_is_damaged(tmp_path: Path) -> None:
    remember(graph("a"), str(tmp_path), {})
    whole = (tmp_path / NAME).read_bytes()
    for place in range(len(whole)):
        (tmp_path / NAME).write_bytes(
            whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        )
        with pytest.raises(CorruptionError):
            remember(graph("a"), str(tmp_path), {})
    for length in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:length])
        with pytest.raises(CorruptionError):
            remember(graph("a"), str(tmp_path), {})
