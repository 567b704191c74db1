"""The numbers of channels: which replica of nested regions something is.

For an operator in nested regions, the innermost first, with local indexes ``l0, l1, ...`` and
widths ``w0, w1, ...``, the global channel is ``l0 + w0*l1 + w0*w1*l2 + ...``, one of
``w0*w1*...``. Outside of any region it is -1, of 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

OUTSIDE = -1
"""The channel of what is in no region."""


@dataclass(frozen=True, slots=True)
class ChannelPath:
    """Where in nested regions a replica is; both the innermost first, and of equal length."""

    indexes: tuple[int, ...] = ()
    """Its index in each region."""
    widths: tuple[int, ...] = ()
    """The width of each region."""

    @property
    def index(self) -> int:
        """The global channel; -1 outside of any region."""
        return self.all[0] if self.indexes else OUTSIDE

    @property
    def count(self) -> int:
        """How many global channels there are; 0 outside of any region."""
        return math.prod(self.widths) if self.widths else 0

    @property
    def local_index(self) -> int:
        """The channel within the innermost region; -1 outside of any."""
        return self.indexes[0] if self.indexes else OUTSIDE

    @property
    def local_count(self) -> int:
        """The width of the innermost region; 0 outside of any."""
        return self.widths[0] if self.widths else 0

    @property
    def all(self) -> tuple[int, ...]:
        """The global channel at each level, the innermost first.

        >>> Channel((1, 2, 1), (2, 3, 2)).all
        (11, 5, 1)
        """
        return tuple(
            global_channel(self.indexes[level:], self.widths[level:])
            for level in range(len(self.indexes))
        )


def global_channel(indexes: Sequence[int], widths: Sequence[int]) -> int:
    """Return ``l0 + w0*l1 + w0*w1*l2 + ...``."""
    channel, factor = 0, 1
    for local, width in zip(indexes, widths, strict=True):
        channel += factor * local
        factor *= width
    return channel


def iter_channels(widths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the local indexes of all channels, the innermost first, by ascending global channel."""
    if not widths:
        yield ()
        return
    for outer in iter_channels(widths[1:]):
        for local in range(widths[0]):
            yield (local, *outer)
