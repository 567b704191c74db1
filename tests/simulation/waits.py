"""How long inputs of each priority wait under overload, as a picture: `docs/waits.svg`.

python -m tests.simulation.waits

Ten thousand inputs, few of which are urgent; a batch takes a second and reads a thousand rows.
At first half as many come, then twice as many for a while, then half as many again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.simulation.crowd import AGED_MS, BEGIN_MS, ROUND, Crowd, weight_when_old

TARGET = Path(__file__).parents[2] / "docs" / "waits.svg"

INPUTS = 10_000
ROWS = 1_000
"""Of a batch, which takes a second; an epoch has one."""

OVERLOAD_S = range(20, 60)
SECONDS = 160

SHARES = {800: 0.02, 600: 0.03, 300: 0.05, 0: 0.8, -1000: 0.1}
"""How many inputs have each priority: one of each band."""

COLORS = dict(zip(SHARES, ("#0b6e4f", "#3a86c8", "#8e6bbf", "#d98e04", "#c0392b"), strict=True))

MARKS_S = (1, 2, 5, 10, 20, 50, 100, 200)
"""The scale of waits is logarithmic; what is less than the first counts as that."""

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 18, 40

Points = Sequence[tuple[float, float]]
"""Seconds since the beginning, and seconds waited."""


def played() -> Crowd:
    """Play the crowd; it holds all bounds on its way."""
    dice = random.Random(7)
    priorities = [each for each, share in SHARES.items() for _ in range(round(INPUTS * share))]
    crowd = Crowd(priorities, limit=ROWS)
    names = sorted(crowd.members)
    for second in range(SECONDS):
        for name in dice.choices(names, k=2 * ROWS if second in OVERLOAD_S else ROWS // 2):
            crowd.arrive(name, 1)
        crowd.batch()
        crowd.now_ms += 1_000
    return crowd


def longest(crowd: Crowd) -> dict[int, Points]:
    """Return the longest wait that each batch ended, by priority."""
    found: dict[int, dict[float, float]] = {priority: {} for priority in COLORS}
    for each in crowd.served:
        at_s = (each.at_ms - BEGIN_MS) / 1000
        waits = found[crowd.members[each.name].priority or 0]
        waits[at_s] = max(waits.get(at_s, 0.0), each.waited_ms / 1000)
    return {priority: sorted(waits.items()) for priority, waits in found.items()}


def bound_s(priority: int) -> float:
    """Return after how long an input is served at the latest, if all others wait before it.

    Until it is old, then the stated rounds of turns, of which a second has a thousand; and the
    batch that is under way.
    """
    rounds = -(-INPUTS // weight_when_old(priority)) + 1
    return AGED_MS / 1000 + ROUND * rounds / ROWS + 1


def picture(waits: Mapping[int, Points]) -> str:
    """Return the picture as SVG."""
    across, along = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(at_s: float) -> float:
        return round(LEFT + across * at_s / SECONDS, 1)

    def y(waited_s: float) -> float:
        part = math.log(max(1, waited_s / MARKS_S[0])) / math.log(MARKS_S[-1] / MARKS_S[0])
        return round(TOP + along * (1 - part), 1)

    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        (
            f'<rect x="{x(OVERLOAD_S[0])}" y="{TOP}" width="{x(len(OVERLOAD_S)) - LEFT}" '
            f'height="{along}" fill="#f0f0f0"/>'
        ),
        _text(x(OVERLOAD_S[0]) + 4, TOP + 14, "twice too much comes"),
        *(_line(LEFT, y(s), WIDTH - RIGHT, y(s), "#ddd") for s in MARKS_S),
        *(_text(LEFT - 8, y(s) + 4, f"{s} s", "end") for s in MARKS_S),
        *(_text(x(s), HEIGHT - BOTTOM + 16, f"{s} s", "middle") for s in range(0, SECONDS + 1, 20)),
    ]
    for bound, priorities in sorted(_bounds(waits).items()):
        told = str(priorities[0]) if len(priorities) == 1 else f"{priorities[-1]} and above"
        color = COLORS[priorities[-1]]
        lines += [
            _line(LEFT, y(bound), WIDTH - RIGHT, y(bound), color, dash="6 4"),
            _text(WIDTH - RIGHT + 6, y(bound) + 4, f"bound of {told}"),
        ]
    for number, (priority, points) in enumerate(waits.items()):
        path = " ".join(f"{x(at_s)},{y(waited_s)}" for at_s, waited_s in points)
        at_y = HEIGHT - BOTTOM - 100 + 18 * number
        color = COLORS[priority]
        lines += [
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>',
            _line(WIDTH - RIGHT + 6, at_y, WIDTH - RIGHT + 26, at_y, color),
            _text(WIDTH - RIGHT + 32, at_y + 4, f"priority {priority}"),
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bounds(waits: Iterable[int]) -> dict[float, list[int]]:
    found: dict[float, list[int]] = {}
    for priority in waits:
        found.setdefault(bound_s(priority), []).append(priority)
    return found


def _line(x: float, y: float, to_x: float, to_y: float, color: str, *, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{color}"{dashed}/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


if __name__ == "__main__":
    TARGET.write_text(picture(longest(played())), encoding="utf-8")
