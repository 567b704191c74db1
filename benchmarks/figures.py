"""What stays of a measurement: medians and spreads that a person can read, not each sample.

The samples of a run lie in the cache, for a reader that doubts a figure. What the report is
made from is small enough to be reviewed: a change of it is a line per figure.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.measure import spread

SAMPLES = frozenset({"turns", "table", "changes"})
"""What a contender's result holds besides figures: each batch, and the digests that were compared."""

DIGITS = 5
"""Significant digits of a figure; the next run differs in the third."""

STRETCHES = 20
"""Points of a course: enough to see it rise and fall, few enough for a table."""

LINE_MAX = 240
"""Characters up to which values of one thing share a line."""


def figures(found: Any) -> Any:
    """Return what was found without single samples, and floats as exact as they are."""
    if isinstance(found, dict):
        return {name: figures(value) for name, value in found.items() if name not in SAMPLES}
    if isinstance(found, list | tuple):
        return [figures(value) for value in found]
    return float(f"{found:.{DIGITS}g}") if isinstance(found, float) else found


def course(turns: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return how a long run went: stretches of as many turns each, in their order."""
    step = max(1, len(turns) // STRETCHES)
    return [
        {
            "first": first + 1,
            "last": min(first + step, len(turns)),
            "total_s": spread([turn["total_s"] for turn in turns[first : first + step]]),
            "runs": spread([turn["runs"] for turn in turns[first : first + step]]),
        }
        for first in range(0, len(turns), step)
    ]


def written(value: Any, indent: str = "") -> str:
    """Return JSON with a figure and its spread on one line each, names in order."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + len(line) <= LINE_MAX:
        return line
    deeper = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(deeper + written(v, deeper) for v in value) + f"\n{indent}]"
    items = (f"{deeper}{json.dumps(k)}: {written(v, deeper)}" for k, v in sorted(value.items()))
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"
