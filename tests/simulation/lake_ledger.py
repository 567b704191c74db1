"""What the query of a lake must say: what lies before it, and whether a batch is what it should be.

A ledger lives as long as a checkpoint. It knows from the models what each input still has
(`lake_inputs`), which inputs a batch was planned over, and who waits since when.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from math import floor, inf

import pyarrow as pa

from spark_upsert.core.input_order import Order, RoundRobin
from spark_upsert.merge import order_from_json
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.inputs.table import TablePosition
from spark_upsert.streams.offsets.offset import Position
from tests.simulation.lake_ground import Ground
from tests.simulation.lake_inputs import Reading, TableModel, TableTape
from tests.simulation.lake_options import CHANGE_COLUMNS
from tests.support.merging import picks_of
from tests.support.streams import Row

Positions = Mapping[str, Position]
Lowest = Mapping[str, int]
"""The oldest version of each input whose changes can be read."""


class Ledger:
    """What is said and what is to be said, for as long as a checkpoint lives."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.tapes: dict[str, TableTape] = {}
        self.columns = pa.schema([])
        how = ground.options
        self.reading = Reading((), how.is_feed, how.mode, how.has_pairs)
        self.first_kept = 0
        """The first batch that can be replayed."""
        self.is_whole = not ground.options.is_lenient
        """Whether the sink has all that there ever was."""
        self._order: tuple[Order, list[str]] | None = None
        self._expected: list[str] | None = None
        """The inputs of the rows of the batch that is noted, where that is known."""
        self._ahead: set[str] = set()
        """The inputs that had something when it was noted."""
        self._limits = dict(ground.options.limits)
        """Those by which the batch that is noted was planned."""
        self._waits: Counter[str] = Counter()
        self._held_s: float | None = None
        """Since when this process is known to hold a batch back."""
        self._noted_s = -inf
        self._count = 0

    def reread(self, columns: pa.Schema) -> None:
        """Go on with the columns of a fresh process."""
        how = self._ground.options
        own = [name for name in columns.names if name not in CHANGE_COLUMNS]
        chosen = tuple(name for name in own if not name.startswith("_"))
        self.columns = columns
        self.reading = Reading(chosen, how.is_feed, how.mode, how.has_pairs)
        for tape in self.tapes.values():
            if isinstance(tape, TableTape):
                tape.reread(self.reading)

    # -- what lies ahead -------------------------------------------------------------

    def tapes_of_all(self, standing: Positions) -> dict[str, TableTape]:
        """Return what is to be said of each input that the query should have."""
        names = self._ground.present()
        return {name: self.tapes.get(name) or self.fresh_tape(name, standing) for name in names}

    def fresh_tape(self, name: str, standing: Positions) -> TableTape:
        """Return what a stream says that begins with an input now."""
        ground, model = self._ground, self._ground.models[name]
        start = ground.options.start_of(name)
        joins = ground.options.pattern is not None and bool(standing)
        version = start.get("startingVersion")
        is_inclusive = start.get("startingBoundInclusive") != "false"
        has_snapshot = False
        if version is None and "startingTimestamp" not in start:
            origin, has_snapshot = model.upper - 1, True
        elif version == "latest" and not joins:
            origin = model.upper
        elif version in ("latest", "earliest"):
            origin = ground.first_changes(name)
        elif version is None:
            since_ms = int(start["startingTimestamp"]) + int(not is_inclusive)
            origin = sum(each < since_ms for each in model.times_ms)
        else:
            origin = int(version) + int(not is_inclusive)
        tape = TableTape(model, origin, has_snapshot, ground.options.is_lenient)
        tape.begin(self.reading)
        return tape

    def waiting(self, name: str, tape: TableTape, standing: Positions) -> int:
        """Return how many rows, or steps, a batch may take of an input."""
        if self._ground.options.is_exact:
            return tape.waiting(self.reading)
        position = standing.get(name)
        if position is None:
            return 1
        known = TablePosition.from_position(position)
        return tape.model.upper - known.upper + int(known.is_in_snapshot)

    # -- a batch that is noted -------------------------------------------------------

    def expect(
        self,
        noted: str,
        standing: Positions,
        waiting: dict[str, int],
        tapes: dict[str, TableTape],
        *,
        is_amid: bool,
    ) -> None:
        """Remember what was there when a batch was planned.

        Parameters
        ----------
        noted : str
            The text of its end.
        standing : mapping of str to Position
            The same.
        waiting : dict of str to int
            What lay before each input.
        tapes : dict of str to TableTape
        is_amid : bool
            Whether others acted meanwhile.
        """
        is_first = not self.tapes
        self._limits = dict(self._ground.options.limits)
        self._note(tapes, standing, is_amid=is_amid)
        if is_first and not is_amid:
            self._check_priorities(standing)
        self._ahead = {name for name, rows in waiting.items() if rows}
        # Who is polled may have something that nobody knows of yet.
        is_known = self._ground.options.is_exact and not self._ground.is_polled
        self._expected = self._sequence(waiting, noted, is_amid=is_amid) if is_known else None

    def _note(self, tapes: Mapping[str, TableTape], standing: Positions, *, is_amid: bool) -> None:
        """Take in which inputs the offset has, and where new ones begin."""
        assert standing.keys() == tapes.keys(), f"{[*standing]} are noted, not {[*tapes]}"
        for name in self.tapes.keys() - standing.keys():
            del self.tapes[name]
            self.is_whole = False
        for name, position in standing.items():
            if name not in self.tapes:
                self.tapes[name] = tape = tapes[name]
                self._check_origin(name, tape, position, is_amid=is_amid)

    def _check_origin(
        self, name: str, tape: TableTape, position: Position, *, is_amid: bool
    ) -> None:
        found = TablePosition.from_position(position).origin
        if is_amid or tape.is_lenient:
            assert found >= tape.origin, f"{name} begins at {found}, not {tape.origin}"
            tape.origin = found
            tape.begin(self.reading)
        assert found == tape.origin, f"{name} begins at {found}, not {tape.origin}"

    def _check_priorities(self, standing: Positions) -> None:
        """Check that of inputs none of which has waited yet one of the most urgent comes first."""
        how = self._ground.options
        if how.is_exact or not any(how.limits.values()):
            return
        bands: dict[str, int] = {}
        served: set[str] = set()
        for name, position in standing.items():
            tape = self.tapes[name]
            if tape.has_snapshot or tape.is_lenient:
                return
            amounts = tape.model.amounts
            if any(map(any, amounts[tape.origin :])):
                bands[name] = max(-1, min(3, self._priority(name, tape.model) // 250))
            if any(map(any, amounts[tape.origin : TablePosition.from_position(position).upper])):
                served.add(name)
        if bands:
            urgent = {name for name in bands if bands[name] == max(bands.values())}
            self._ground.tell(f"of {bands} {sorted(served)} are served first")
            assert urgent & served, f"of {bands} {served} are served first"

    def _priority(self, name: str, model: TableModel) -> int:
        """Return how urgent a table is that has not waited yet."""
        ground, how = self._ground, self._ground.options
        said = how.priority_of(name, model.priority)
        if said is not None or not how.has_auto_priority:
            return said or 0
        own = "lake" if how.has_lease else None
        others = [e for e in ground.table(name).consumers() if e.consumer != own]
        read_ms = max((each.renewed_ms for each in others), default=-inf)
        idle_ms = max(0, int(ground.wall() * 1000) - read_ms)
        return 0 if idle_ms >= 300_000 else floor(500 * 0.5 ** (idle_ms / 30_000) + 0.5)

    # -- a batch that waits for rows -------------------------------------------------

    def check_held(self, waiting: Mapping[str, int], before_s: float) -> None:
        """Check that nothing lay ahead where no batch was made, or rightly waits for more.

        Parameters
        ----------
        waiting : mapping of str to int
            What lay before each input.
        before_s : float
            When the process was asked.
        """
        rows_min = self._ground.options.rows_min
        if not any(waiting.values()):
            self._held_s = None
            return
        assert rows_min is not None, f"nobody takes {waiting}"
        delay_s = self._ground.options.delay_s
        assert self._held_s is None or before_s - self._held_s < delay_s, (
            f"{waiting} wait since {self._held_s}, at {before_s}"
        )
        self._held_s = self._ground.now() if self._held_s is None else self._held_s

    def check_due(self, standing: Positions, *, is_amid: bool) -> None:
        """Check that a batch that was noted just now did not have to wait for more rows."""
        ground, how = self._ground, self._ground.options
        rows, oldest_ms = 0, inf
        since_s, self._noted_s, self._held_s = self._noted_s, ground.now(), None
        if how.rows_min is None or is_amid or how.is_lenient:
            return
        if standing.keys() != set(ground.present()):
            return  # It does not wait where an input joins or goes.
        for name, position in standing.items():
            tape = self.tapes.get(name)
            if not isinstance(tape, TableTape) or name in ground.gone:
                return  # Nobody counts its rows here.
            at = TablePosition.from_position(position)
            if at.is_in_snapshot or tape.model is not ground.models[name]:
                return
            rows += sum(count for count, _, _ in tape.model.amounts[at.upper :])
            oldest_ms = min([oldest_ms, *tape.model.times_ms[at.upper :]])
        waited_s = max(ground.now() - since_s, ground.wall() - oldest_ms / 1000)
        is_due = rows >= how.rows_min or waited_s >= how.delay_s
        assert is_due, f"a batch of {rows} rows is made, not of {how.rows_min}, after {waited_s} s"

    def forget_held(self) -> None:
        """Take note that the process is another one."""
        self._held_s = None

    def _sequence(
        self, waiting: Mapping[str, int], noted: str, *, is_amid: bool
    ) -> list[str] | None:
        """Return the inputs of the rows of the next batch, told row by row."""
        names = list(waiting)
        order, before = self._order or (self._first_order(), names)
        if isinstance(order, RoundRobin) and before != names:
            turns = [*before[order.cursor :], *before[: order.cursor]]
            order = RoundRobin(cursor=next((names.index(n) for n in turns if n in names), 0))
        if is_amid:
            state = json.loads(noted)["state"]["order"]["order"]
            self._order = order_from_json(state), names
            return None
        rows_max = self._ground.options.rows_max
        picks, order = picks_of(order, list(waiting.values()), rows_max)
        self._order = order, names
        return [names[pick] for pick in picks]

    def _first_order(self) -> Order:
        order = ReadPlan.parse(self._ground.options.given(self._ground.named)).query.order
        assert order is not None
        return order

    # -- a batch that is delivered ---------------------------------------------------

    def lowest(self) -> Lowest:
        """Return the oldest version of each input that can be read just now."""
        names = {*self.tapes, *self._ground.present()}  # Some may be named no more.
        return {name: self._ground.first_changes(name) for name in names}

    def check(
        self, number: int, rows: list[Row], before: Positions, after: Positions, lowest: Lowest
    ) -> None:
        """Check the rows of a batch between two offsets."""
        for row in rows[:1]:
            assert [*row] == self.columns.names, f"{row} has not {self.columns.names}"
        if self._ground.options.is_exact:
            self._check_order(rows)
        else:
            self._check_batch(number, rows, before, after, lowest)
            self._check_limits(before, after, lowest)
        self._check_turns(before, after)

    def _check_order(self, rows: list[Row]) -> None:
        how = self._ground.options
        if how.is_numbered:
            numbers = [row["_merge_seq"] for row in rows]
            expected = list(range(self._count, self._count + len(rows)))
            assert numbers == expected, f"an exact order has a gap: {numbers}, not {expected}"
        self._count += len(rows)
        most = self._limits["maxRowsPerTrigger"]
        assert most is None or len(rows) <= most, "the limit is exceeded"
        if self._expected is not None:
            sequence = [row["_input"] for row in rows]
            assert sequence == self._expected, f"order {sequence}, not {self._expected}"
        for row in rows:
            tape = self.tapes[row["_input"]]
            tape.follow(self.reading.told(row), self.reading)

    def _check_batch(
        self, number: int, rows: list[Row], before: Positions, after: Positions, lowest: Lowest
    ) -> None:
        strangers = {row["_input"] for row in rows} - after.keys()
        assert not strangers, f"rows of {strangers}, which are in no offset"
        for name, position in after.items():
            own = [row for row in rows if row["_input"] == name]
            tape = self.tapes[name]
            if before.get(name) == position:
                assert not own, f"{name} stands still, and gives {own}"
            elif name not in self._ground.present():
                assert not own, f"{name} is gone, and gives {own}"
                self.is_whole = False
                self.first_kept = number + 1  # Named again, it would give its rows.
            else:
                said = Counter(map(self.reading.told, own))
                tape.check(said, before.get(name), position, lowest[name], self.reading)

    def _check_limits(self, before: Positions, after: Positions, lowest: Lowest) -> None:
        steps: list[tuple[int, int, int]] = []
        for name, position in after.items():
            found = self._amounts(name, before.get(name), position, lowest.get(name, 0))
            if found is None:
                return
            steps += found
        counting = [step for step in steps if any(step)]
        for index, (name, most) in enumerate(self._limits.items()):
            total = sum(step[index] for step in counting)
            is_kept = most is None or total <= most or len(counting) == 1
            assert is_kept, f"{name}: {total} in {counting}"

    def _amounts(
        self, name: str, before: Position | None, after: Position, lowest: int
    ) -> list[tuple[int, int, int]] | None:
        """Return the rows, bytes and epochs of what was taken; None of a snapshot."""
        model = self.tapes[name].model
        if before == after or name not in self._ground.models:
            return []
        end = TablePosition.from_position(after)
        start_at = TablePosition.from_position(before) if before else None
        if end.is_in_snapshot or (start_at is not None and start_at.is_in_snapshot):
            return None
        if start_at is None:
            tape = self.tapes[name]
            if tape.has_snapshot:
                return None
            return model.amounts[max(end.origin, lowest) : end.upper]
        return model.amounts[max(start_at.upper, lowest) : end.upper]

    def _check_turns(self, before: Positions, after: Positions) -> None:
        how = self._ground.options
        if how.is_exact or how.has_priorities or how.has_age or self._ground.is_polled:
            return  # Nobody starves with priorities either, but in more batches than there are.
        served = {name for name in after if after[name] != before.get(name)}
        for name in self._ahead & after.keys():
            self._waits[name] = 0 if name in served else self._waits[name] + 1
            assert self._waits[name] <= len(self._ground.models), f"{name} starves"

    # -- the end ---------------------------------------------------------------------

    def check_end(self, name: str, standing: Positions) -> None:
        """Check that nothing of an input is left."""
        tape = self.tapes[name]
        position = TablePosition.from_position(standing[name])
        assert position.upper == tape.model.upper, f"{name} is read up to {position.upper}"
        if self._ground.options.is_exact:
            assert tape.waiting(self.reading) == 0, f"{name} has more"

    def is_all(self, name: str) -> bool:
        """Return whether the query gave all that an input holds."""
        tape = self.tapes[name]
        return self.is_whole and (tape.has_snapshot or tape.origin == 0)
