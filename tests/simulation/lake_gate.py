"""Who may write to the tables of a lake that has caps, and heeds readers that cannot keep up.

Each write is let in or refused, and the reasons are held against what the models and the leases
say. The promises:

- what is admitted lies within the caps, behind the slowest lease that lives;
- what is refused has its reason, was asked for no longer than it may wait, and left nothing behind;
- a report of pressure that stands holds up whoever heeds it, and one that is out of date nobody;
- what is in the table already is answered as done, whatever there is room for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from spark_upsert.errors import BatchTooLargeError, TableFullError, ThrottledError, UpsertFlowError
from spark_upsert.table.retention.lag import report_path
from spark_upsert.table.retention.leases import Lease
from tests.simulation.lake_ground import Ground
from tests.simulation.lake_inputs import TableModel

REFUSALS = (TableFullError, BatchTooLargeError, ThrottledError)

LOOK_S = 1.0
"""What a writer has seen of pressure counts for so long."""

REPORT_S_MAX = 60.0
"""No report counts for longer."""


@dataclass
class ConnectSchema:
    """A report of pressure that refuses writers, as somebody beside the query has put it."""

    data: bytes
    said_ms: int
    ttl_ms: int
    until_s: float = inf
    """When it was replaced."""

    def is_live(self, now_ms: int) -> bool:
        return abs(now_ms - self.said_ms) < self.ttl_ms


@dataclass
class Gate:
    """Lets writers ask, and judges what they are told."""

    ground: Ground
    said: dict[str, list[ConnectSchema]] = field(default_factory=dict)
    """By table, the last one last."""
    _said_before: set[bytes] = field(default_factory=set)
    """The reports of processes of the query before this one."""
    pressed_s: float = -inf
    """When the query noted a batch last, which is when it may say how pressed it is."""
    rested_s: float = inf
    """When the process that noted it found nothing ahead: then it takes back what it said."""

    def ask(
        self,
        name: str,
        write: Callable[[], object],
        *,
        wait_s: float,
        heeds: bool = True,
        is_fresh: bool = False,
        waits_for_relief: bool = False,
    ) -> UpsertFlowError | None:
        """Let somebody write; return why it was refused, or None.

        Parameters
        ----------
        wait_s : float
            How long it may wait.
        heeds : bool
            Whether it heeds pressure.
        is_fresh : bool
            Whether its process has seen nothing yet.
        waits_for_relief : bool
            Whether it waits where pressure refuses it.
        """
        ground = self.ground
        if not ground.options.is_pressed:
            write()
            return None
        before = self._stored(name)
        is_held_up = heeds and is_fresh and not waits_for_relief and self._is_held_up(name)
        ground.slept_s = 0.0
        try:
            write()
        except REFUSALS as error:
            refusal = error
        else:
            assert not is_held_up, f"{name} takes rows although it is pressed"
            return None
        assert ground.slept_s <= wait_s + 1e-6, f"it waited for {ground.slept_s} s of {wait_s} s"
        left = self._stored(name) - before
        assert not left, f"a write that was refused left {left}"
        ground.tell(f"{name} refuses: {refusal.code} by {refusal.fields.get('consumer')}")
        match refusal:
            case TableFullError():
                self._check_full(name, refusal, wait_s, waits_for_relief=waits_for_relief)
            case BatchTooLargeError():
                bytes_max = ground.model(name).bytes_max
                assert bytes_max is not None
                assert refusal.fields["bytes"] > bytes_max, f"{refusal} has room"
                assert self._slowest(name) is not None, f"{refusal}, and nobody reads"
            case ThrottledError():
                assert heeds, f"it passes by, and is told {refusal}"
                self._check_throttled(name, refusal)
        return refusal

    def check_room(self, name: str) -> None:
        """Check that what was let in just now lies within the caps."""
        model = self.ground.model(name)
        is_capped = model.epochs_max is not None or model.bytes_max is not None
        lease = self._slowest(name) if is_capped else None
        if lease is not None:
            epochs, size = self._backlog(name, lease)
            most = model.epochs_max, model.bytes_max
            assert epochs <= (model.epochs_max or inf), f"{name}: {epochs} epochs of {most}"
            assert size <= (model.bytes_max or inf), f"{name}: {size} bytes of {most}"

    def check_relief(self, name: str, refusal: UpsertFlowError | None) -> None:
        """Check that a table takes rows whose readers have read it all and press nobody."""
        is_for_good = isinstance(refusal, BatchTooLargeError)
        assert refusal is None or is_for_good, f"{name} takes no rows for ever: {refusal}"

    def _stored(self, name: str) -> set[str]:
        kept = (f"{name}/data/", f"{name}/_log/")
        return {path for path in self.ground.objects.objects if path.startswith(kept)}

    # -- caps ------------------------------------------------------------------------

    def _slowest(self, name: str) -> Lease | None:
        now_ms = self._now_ms()
        live = [
            lease
            for lease in self.ground.observed(name).consumers()
            if now_ms < lease.renewed_ms + lease.ttl_ms
        ]
        return min(live, key=lambda lease: (lease.version, lease.consumer), default=None)

    def _backlog(self, name: str, lease: Lease) -> tuple[int, int]:
        """Return the epochs and the bytes behind a lease."""
        model: TableModel = self.ground.model(name)
        since = self.ground.observed(name).log.head().since
        behind = model.amounts[max(lease.version, since) + 1 :]
        return sum(epochs for _, _, epochs in behind), sum(size for _, size, _ in behind)

    def _check_full(
        self, name: str, refusal: TableFullError, wait_s: float, *, waits_for_relief: bool
    ) -> None:
        model, lease, told = self.ground.model(name), self._slowest(name), refusal.fields
        assert lease is not None, f"{refusal}, and nobody reads"
        assert (told["consumer"], told["version"]) == (lease.consumer, lease.version)
        epochs, size = self._backlog(name, lease)
        assert told["epochs"] <= epochs, f"{refusal} counts {epochs} epochs twice"
        assert told["bytes"] <= size, f"{refusal} counts {size} bytes twice"
        is_full = epochs >= (model.epochs_max or inf) or (model.bytes_max and size)
        assert is_full, f"{refusal}, but there are {epochs} epochs of {size} bytes"
        if model.waits:
            assert self.ground.slept_s >= wait_s - 1e-6, f"{refusal} after {self.ground.slept_s} s"
        elif not waits_for_relief:
            assert not self.ground.slept_s, f"{refusal}, and it waited"

    # -- pressure --------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self.ground.now() * 1000)

    def replaces(self, name: str, said: ConnectSchema | None) -> None:
        """Take note of what another reader says instead of what it said last; None: no refusal."""
        for each in self.said.get(name, [])[-1:]:
            each.until_s = min(each.until_s, self.ground.now())
        if said is not None:
            self.said.setdefault(name, []).append(said)

    def note_what_was_said(self) -> None:
        """Take note that the query has another process, which knows of nothing that was said."""
        self._said_before = set(self._said_by_the_query().values())

    def check_taken_back(self) -> None:
        """Check that the query, which is at rest, has taken back all that its process said."""
        for name, data in self._said_by_the_query().items():
            assert data in self._said_before, f"at rest, and {name} is told {data!r}"

    def _said_by_the_query(self) -> dict[str, bytes]:
        stored, path = self.ground.objects.objects, report_path("lake")
        asked = {name: stored.get(f"{name}/{path}") for name in self.ground.present()}
        own = b'"consumer":"lake"'  # Others may have put there what is none.
        return {name: data for name, data in asked.items() if data is not None and own in data}

    def _is_held_up(self, name: str) -> bool:
        """Return whether a report stands that refuses writers, beside what the query says."""
        stored = self.ground.objects.objects.items()
        there = {data for path, data in stored if path.startswith(f"{name}/_pressure/")}
        last = self.said.get(name, [])[-1:]
        is_heeded = self.ground.model(name).heeds_pressure
        return is_heeded and any(s.data in there and s.is_live(self._now_ms()) for s in last)

    def _check_throttled(self, name: str, refusal: ThrottledError) -> None:
        ground = self.ground
        assert ground.model(name).heeds_pressure, f"{name} heeds nobody: {refusal}"
        if refusal.fields["consumer"] != "lake":
            said, now_s = self.said.get(name, []), ground.now()
            live = [s for s in said if s.is_live(self._now_ms()) and now_s - s.until_s < LOOK_S]
            assert live, f"nobody says {refusal}"
        elif not ground.options.has_priorities:  # There its clock jumps.
            assert ground.now() - self.pressed_s < REPORT_S_MAX + LOOK_S, f"{refusal} is old"
            assert ground.now() - self.rested_s < LOOK_S, f"{refusal}, but it is at rest"
