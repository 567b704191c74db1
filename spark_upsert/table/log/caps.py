"""Back-pressure by the properties of a table: caps, and whether writers heed pressed consumers.

Caps bound how much a table may hold that its slowest consumer has not read. They are a promise to
consumers, and to the payer of the storage: behind the slowest live lease there are never more
epochs, and never more bytes, than the caps say. Writers keep the promise (`table.write.admission`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from spark_upsert.errors import OptionError

BYTES = "maxBacklogBytes"
EPOCHS = "maxBacklogEpochs"
ON_FULL = "onFull"
BACKPRESSURE = "backpressure"

FULL_WAIT_MS = 60_000
"""How long a write waits for room unless it is said: the batches of a consumer that goes on are
shorter than a minute, so that it has made room by then."""

_WHOLE = re.compile(r"\d{1,18}", re.ASCII)


class OnFull(Enum):
    """The policy for a write without room."""

    WAIT = "wait"
    """It waits, for some time; then it is refused."""
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """How much may lie behind the slowest consumer; None: any number."""

    epochs: int | None = None
    bytes: int | None = None
    on_full: OnFull = OnFull.WAIT

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Caps:
        """Return the caps that the properties of a table mean."""
        return cls(
            epochs=parse_cap(EPOCHS, properties.get(EPOCHS, "0")),
            bytes=parse_cap(BYTES, properties.get(BYTES, "0")),
            on_full=parse_on_full(properties.get(ON_FULL, OnFull.WAIT.value)),
        )

    @property
    def is_none(self) -> bool:
        """Whether nothing is capped."""
        return self.epochs is None and self.bytes is None

    def admits(self, *, epochs: int, bytes: int) -> bool:
        """Return whether so much may lie behind the slowest consumer."""
        return (self.epochs is None or epochs <= self.epochs) and (
            self.bytes is None or bytes <= self.bytes
        )


def parse_cap(name: str, text: str) -> int | None:
    """Return a cap, None for 0, which takes it away: a property cannot be unset.

    Raises
    ------
    OptionError
        It is no whole number.
    """
    if _WHOLE.fullmatch(text.strip()) is None:
        expected = "a whole number, or 0 for no cap"
        raise OptionError.invalid(name, text, expected)
    return int(text) or None


def heeds_pressure(properties: Mapping[str, str]) -> bool:
    """Return whether the writers of a table heed consumers that cannot keep up."""
    return parse_flag(BACKPRESSURE, properties.get(BACKPRESSURE, "false"))


def parse_flag(name: str, text: str) -> bool:
    """Return a truth value; raises `OptionError`."""
    if text.strip().lower() not in ("true", "false"):
        raise OptionError.invalid(name, text, "'true' or 'false'")
    return text.strip().lower() == "true"


def parse_on_full(text: str) -> OnFull:
    """Return what becomes of a write for which there is no room; raises `OptionError`."""
    try:
        return OnFull(text.strip().lower())
    except ValueError:
        known = [each.value for each in OnFull]
        raise OptionError.not_one_of(ON_FULL, text, known) from None
