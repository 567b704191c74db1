"""The user of the query of a lake, who does what an error asks for, if the error has its reason."""

from __future__ import annotations

from spark_upsert.errors import (
    DataLossError,
    OptionError,
    OtherTableError,
    SchemaError,
    TableNotFoundError,
    UpsertFlowError,
    VersionNotFoundError,
)
from spark_upsert.streams.inputs.table import TablePosition
from tests.simulation.lake_ground import Ground
from tests.simulation.lake_inputs import TableTape
from tests.simulation.lake_keepers import Keepers
from tests.simulation.lake_reader import Reader


class User:
    """Mends what an error is about, or raises it again: it had no reason."""

    def __init__(self, ground: Ground, reader: Reader, keepers: Keepers) -> None:
        self._ground = ground
        self._reader = reader
        self._keepers = keepers

    def mend(self, error: UpsertFlowError, *, has_struck: bool = False) -> None:
        """Do what an error asks for; one that a fault brought about asks for a restart alone."""
        self._ground.tell(f"the query ends by {type(error).__name__}")
        if not has_struck:
            self._mend(error, self._reader.reasons())
        self._reader.restart()

    def _mend(self, error: UpsertFlowError, reasons: list[str]) -> None:
        ground, how = self._ground, self._ground.options
        match error:
            case OptionError() if any("named no more" in each for each in reasons):
                if ground.random.random() < 0.5:
                    how.may_lack = True
                else:
                    self._name_all()
            case DataLossError() if self._has_counted_what_is_removed():
                self._name_all()
            case OtherTableError() if any("another" in each for each in reasons):
                self._reader.begin_anew()
            case DataLossError() | TableNotFoundError() | OtherTableError() if ground.gone:
                self._keepers.bring_back()
            case SchemaError() if self._reader.is_altered:
                pass
            case VersionNotFoundError() if (seconds := self._seconds_to_start()) > 0:
                ground.now.advance(seconds)
            case DataLossError() if self._begins_expired():
                how.start_where_it_is_left()
            case DataLossError() if how.was_without_lease and self._is_expired():
                if how.is_exact or ground.random.random() < 0.3:
                    self._reader.begin_anew()
                else:
                    self._become_lenient()
            case _:
                raise error

    def _become_lenient(self) -> None:
        self._ground.options.is_lenient = True
        self._reader.ledger.is_whole = False
        for tape in self._reader.ledger.tapes.values():
            if isinstance(tape, TableTape):
                tape.is_lenient = True

    def _seconds_to_start(self) -> float:
        """Return how far the latest start of an input is in the future; negative: in the past."""
        starts = (self._ground.options.start, *self._ground.options.starts.values())
        times_ms = [int(start.get("startingTimestamp", "0")) for start in starts]
        return max(times_ms) / 1000 - self._ground.now()

    def _name_all(self) -> None:
        self._ground.named[:] = sorted(self._ground.options.starts)

    def _has_counted_what_is_removed(self) -> bool:
        removed = self._reader.standing().keys() - set(self._ground.present())
        return self._ground.options.is_exact and self._reader.query.is_pending and bool(removed)

    def _begins_expired(self) -> bool:
        """Return whether an input is to begin where its changes are expired."""
        standing, ledger = self._reader.standing(), self._reader.ledger
        fresh = [name for name in self._ground.tables() if name not in standing]
        return any(
            tape.origin < self._ground.first_changes(name)
            for name, tape in ((name, ledger.fresh_tape(name, standing)) for name in fresh)
            if not tape.has_snapshot
        )

    def _is_expired(self) -> bool:
        """Return whether changes are expired that the query has still to read."""
        before = self._reader.before_the_last()
        for name, position in self._reader.standing().items():
            tape = self._reader.ledger.tapes[name]
            if name in self._ground.gone:
                continue
            known = TablePosition.from_position(before.get(name, position))
            if name not in before:
                known = tape.beginning()
            head = self._ground.observed(name).log.head()
            if known.upper < head.first_changes or known.version < head.since:
                return True
        return False
