"""What becomes of the inputs of a lake while its query runs: they are made, kept, and removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.store.records import encode
from spark_upsert.table.compaction import CompactionResult, compact_runs
from spark_upsert.table.retention.lag import PressureReport, report_path
from tests.simulation.lake_gate import ConnectSchema, Gate
from tests.simulation.lake_ground import Ground
from tests.simulation.lake_inputs import TableModel
from tests.simulation.lake_options import PRIORITIES
from tests.simulation.lake_reader import Reader
from tests.simulation.lake_writers import Writers

OTHER = "other"

SCHEMAS: tuple[dict[str, pa.DataType], ...] = (
    {"k": pa.int64(), "v": pa.int32(), "w": pa.int64()},
    {"k": pa.int64(), "v": pa.int64(), "w": pa.int64()},
    {"k": pa.int64(), "v": pa.int32()},
)
"""What tables begin with; where schemas are not merged all begin with the first."""


class Keepers:
    """Everybody who changes inputs without writing rows, and who names them to the query."""

    def __init__(self, ground: Ground, gate: Gate, writers: Writers, reader: Reader) -> None:
        self._ground = ground
        self._gate = gate
        self._random = ground.random
        self._writers = writers
        self._reader = reader
        self._merged: list[tuple[str, CompactionResult]] = []

    # -- inputs come and go ----------------------------------------------------------

    def create(self) -> None:
        """Add an input; one that is named is one more in the options."""
        ground, how = self._ground, self._ground.options
        number = len(ground.models)
        name = f"{'ab'[number % 2]}/t{number}" if how.pattern == "*/t?" else f"t{number}"
        self._make(name, self._columns_of_a_new_table())
        ground.tell(f"{name} is made")
        if how.pattern is None:
            how.say(name)
            ground.named.append(name)
            self._reader.restart()
        self._writers.write(name)

    def _columns_of_a_new_table(self) -> Mapping[str, pa.DataType]:
        if self._ground.options.merge_schema:
            return self._random.choice(SCHEMAS)
        known = self._ground.models.values()
        return next((model.columns for model in known), SCHEMAS[0])

    def _make(self, name: str, columns: Mapping[str, pa.DataType]) -> None:
        table = self._ground.table(name)
        model = self._ground.models[name] = TableModel(columns)
        if self._ground.options.has_priorities and self._random.random() < 0.5:
            model.priority = self._random.choice(PRIORITIES)
        if self._ground.options.is_pressed:
            self._cap(model)
        table.ensure(TableSchema.of(pa.schema(columns), keys=["k"]), model.properties)
        model.note(table.log.commit(0), None)

    def _cap(self, model: TableModel) -> None:
        dice = self._ground.dice
        if dice.random() < 0.6:
            model.epochs_max = dice.choice([None, 1, 2, 4])
            model.bytes_max = dice.choice([None, 1_150, 5_000])
        model.waits = dice.random() < 0.5
        model.heeds_pressure = dice.random() < 0.7

    def drop(self) -> None:
        """Remove a table, but for the last one; later it comes back, or another takes its place."""
        ground = self._ground
        there = ground.tables()
        if len(there) < 2 or len(ground.gone) > 0:
            return
        name = self._random.choice(there)
        ground.gone[name] = ground.remove(name)
        self._forget_what_is_under_way(name)
        ground.tell(f"{name} is gone")

    def bring_back(self) -> None:
        """Put back what was dropped."""
        if self._ground.gone:
            name, objects = self._ground.gone.popitem()
            for path, data in objects.items():
                self._ground.objects.put(path, data)
            self._ground.tell(f"{name} is back")

    def make_anew(self) -> None:
        """Drop a table, and make another one in its place."""
        name = self._ground.any_table()
        columns = self._ground.models[name].columns
        self._ground.remove(name)
        self._forget_what_is_under_way(name)
        self._make(name, columns)
        self._ground.tell(f"{name} is made anew")
        self._writers.write(name)

    def remove_input(self) -> None:
        """Name an input no more; whether that is allowed is drawn."""
        ground = self._ground
        if ground.options.pattern is not None or len(ground.named) < 2:
            return
        name = self._random.choice(ground.named)
        ground.named.remove(name)
        ground.options.may_lack = self._random.random() < 0.7
        self._reader.restart()
        ground.tell(f"{name} is named no more")

    def name_again(self) -> None:
        """Name an input that was named before."""
        ground = self._ground
        unnamed = [name for name in ground.options.starts if name not in ground.named]
        if unnamed:
            ground.named.append(self._random.choice(unnamed))
            ground.named.sort()
            self._reader.restart()
            ground.tell(f"{ground.named[-1]} is named again")

    def _forget_what_is_under_way(self, name: str) -> None:
        self._writers.forget(name)
        self._merged = [each for each in self._merged if each[0] != name]

    # -- other readers ---------------------------------------------------------------

    def hold(self) -> None:
        """Let another reader take a lease, read on, or go."""
        name, dice = self._ground.any_table(), self._ground.dice
        table = self._ground.table(name)
        held = [each.version for each in table.consumers() if each.consumer == OTHER]
        if held and dice.random() < 0.3:
            table.release(OTHER)
            self._ground.tell(f"another reader of {name} goes")
            return
        head = table.log.head()
        version = dice.randrange(held[0] if held else head.since, head.upper)
        table.hold(OTHER, version)
        self._ground.tell(f"another reader of {name} has read {version}")

    def press(self) -> None:
        """Let another reader say how pressed it is; what it says may be damaged or out of date."""
        name, dice = self._ground.any_table(), self._ground.dice
        now_ms = int(self._ground.now() * 1000)
        ttl_ms, rung = dice.choice([500, 3_000]), dice.choice([2, 4, 4])
        ago_ms = dice.choice([0, 0, 0, ttl_ms, -ttl_ms, 86_400_000, -86_400_000])
        said = PressureReport(
            consumer=OTHER, rung=rung, pressure=1.0, reported_ms=now_ms - ago_ms, ttl_ms=ttl_ms
        )
        record, path = said.to_json(), report_path(OTHER)
        data = encode(record)
        if dice.random() < 0.3:
            none = [b"", data[:-3], data.replace(b"4", b"3"), encode({**record, "format": 99})]
            data, path = dice.choice(none), report_path(dice.choice([OTHER, "lake"]))
        is_refusing = (data, path, rung) == (encode(record), report_path(OTHER), 4)
        if path == report_path(OTHER):
            known = ConnectSchema(data, said.reported_ms, ttl_ms) if is_refusing else None
            self._gate.replaces(name, known)
        self._ground.objects.put(f"{name}/{path}", data)
        self._ground.tell(f"at {path} of {name} another reader says {data!r}")

    def send_away(self) -> None:
        """Let all other readers go, and what they said be out of date."""
        for name in self._ground.tables():
            self._ground.table(name).release(OTHER)
        self._ground.now.advance(600.0)

    # -- upkeep ----------------------------------------------------------------------

    def compact(self) -> None:
        """Compact a table, or begin to, or bring in what was begun."""
        ground = self._ground
        if self._merged and self._random.random() < 0.7:
            name, merged = self._merged.pop()
            count = ground.table(name).commit_compactions([merged])
            self._writers.note_versions(name, None)
            ground.tell(f"{name} is compacted {count} times, late")
            return
        name = ground.any_table()
        table, is_full = ground.table(name), self._random.random() < 0.5
        if self._random.random() < 0.4:
            head = table.log.head()
            jobs = table.compaction_jobs(full=is_full)
            self._merged += [(name, compact_runs(table.store, head, job)) for job in jobs[:1]]
            return
        count = table.compact(full=is_full)
        self._writers.note_versions(name, None)
        ground.tell(f"{name} is compacted {count} times")

    def restore(self) -> None:
        """Turn a table into what it was."""
        name = self._ground.any_table()
        table = self._ground.table(name)
        head = table.log.head()
        table.restore(self._random.randrange(head.since, head.upper))
        self._writers.note_versions(name, None)
        self._ground.tell(f"{name} is restored")

    def expire(self) -> None:
        """Expire all of a table that no lease holds, if the query has begun there."""
        name = self._ground.any_table()
        if name not in self._reader.standing():
            return
        self._forget_what_is_under_way(name)
        table = self._ground.table(name)
        self._ground.now.advance(2 * 3600.0)
        retained = self._random.choice([0, 0, 1, 3])
        table.expire(retain_versions=retained, safety_ms=0)
        table.vacuum(grace_ms=0)
        self._writers.note_versions(name, None)
        self._reader.forget_replays()
        self._ground.tell(f"{name} is expired to {table.log.head().since}")

    def alter(self) -> None:
        """Add a column or widen one: of one table if inputs may differ, else of all."""
        ground, is_alone = self._ground, self._ground.options.merge_schema
        is_added = self._random.random() < 0.5
        there = ground.tables()
        if not is_alone and ground.gone:
            return
        for name in [self._random.choice(there)] if is_alone else there:
            self._alter(name, is_added=is_added)

    def _alter(self, name: str, *, is_added: bool) -> None:
        model, table = self._ground.model(name), self._ground.table(name)
        types = dict(model.columns)
        types |= {"note": pa.string()} if is_added else {"v": pa.int64()}
        if types == model.columns:
            return
        schema = table.log.head().schema
        columns = schema.accept(pa.schema(types), merge=True).columns
        table.alter(replace(schema, columns=columns))
        model.columns = types
        self._reader.is_altered = True
        self._writers.note_versions(name, None)
        self._ground.tell(f"{name} has {list(types)}")
