"""Texts that stand alone: what a flow remembers, and offsets of version 1."""

from __future__ import annotations

import json
from pathlib import Path

from spark_upsert.flow import Flow, Graph
from spark_upsert.flow.rescale import NAME, remember
from spark_upsert.streams.offsets.offset import Offset
from tests.golden.case import Case, Seen, plain
from tests.support.flows import SINK, SOURCE

PLACE = ["6ad1", 7, "91ef"]
OFFSETS = (
    {"format": 2, "hash": None, "origin": None, "place": None, "snapshot": False, "upper": 0},
    {"format": 2, "hash": "7f", "origin": 8, "place": PLACE, "snapshot": True, "upper": 8},
    {"format": 2, "hash": f"1{0:016}", "origin": 3, "place": PLACE, "snapshot": False, "upper": 8},
)
"""Offsets as version 1 wrote them, which nothing writes any more."""


def graph() -> Graph:
    """Return the graph of a flow with two sources."""
    flow = Flow()
    for name in ("a", "b"):
        flow.sink(f"{name}_kept", SINK, flow.source(name, SOURCE))
    return flow.graph()


def build() -> Seen:
    """Return offsets, and let a flow remember what it has."""
    remember(graph(), "flow", {})
    return {"offsets": OFFSETS}


def see(kept: Seen) -> Seen:
    """Return what the texts are read as."""
    return {
        "flow": Path("flow", NAME).read_text(encoding="utf-8"),
        "offsets": [plain(Offset.from_json(each)) for each in kept["offsets"]],
    }


def go_on(kept: Seen) -> Seen:
    """Write what was read anew."""
    return {
        "id": remember(graph(), "flow", {}),
        "flow": Path("flow", NAME).read_text(encoding="utf-8"),
        "offsets": [json.dumps(Offset.from_json(each).to_json()) for each in kept["offsets"]],
    }


CASE = Case("texts", build, see, go_on)
