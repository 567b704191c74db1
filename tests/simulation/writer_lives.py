"""The options of a writer's query, which are others in each of its lives (`options.declare`).

A writer goes through the door of Spark's sink (`plan_table_write`): options that a query may change are
drawn anew when it starts again, and now and then one that it must not, which has to be refused
and to leave the table as it was. What a batch was planned by is known by its put, so that one
that takes effect in a later life is judged by the options of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import ErrorPolicy, Scope, Ties
from spark_upsert.envelopes.write_plan import WritePlan, plan_table_write
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.log.properties import PROPERTY, LateRows, TombstoneRetention
from spark_upsert.table.table import Table
from tests.simulation.wire import PREFIX

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.world import Script, World

ORDER = "order"
"""The column that orders the rows of a writer."""

InputRows = dict[str, str]


@dataclass(frozen=True)
class Proposal:
    """By what an epoch was planned that some process puts into the log."""

    base: int
    """The version on which it was planned."""
    late_rows: LateRows
    script: Script


class WriterLife:
    """The options of one life of a writer, as a user gives them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.lives
        self.given = self._fixed() | self._drawn()
        self.full_wait_ms = self._dice.choice([0, 0, 500])
        self.passes_by = self._dice.random() < 0.2

    def __str__(self) -> str:
        return ", ".join(f"{name}={text}" for name, text in sorted(self.given.items()))

    def plan(self, table: Table) -> WritePlan:
        """Plan a write by these options, after which the table is as they say."""
        return self._plan(table, self.given)

    def try_what_is_refused(self, table: Table) -> None:
        """Plan a write by an option that must be refused."""
        name, change = self._dice.choice(self._forbidden())
        before = table.log.head().version
        try:
            self._plan(table, self.given | change)
        except (OptionError, SchemaError) as error:
            assert table.log.head().version == before, f"P3: {change} is refused, and has an effect"
            self._world.trace.append(f"{change} is refused: {error.code}")
        else:
            raise AssertionError(f"P4: a writer may give another '{name}': {change}")

    def _plan(self, table: Table, given: InputRows) -> WritePlan:
        world, names = self._world, [*self._world.schema.keys, *self._world.columns]
        fields = [(name, pa.int32()) for name in names]
        if "note" in given.get("columnList", ""):
            fields.append(("note", pa.string()))
        if world.schema.order:
            fields.append((ORDER, pa.int64()))
        return plan_table_write(table, WriteOptions.parse(given), pa.schema(fields))

    # -- what is drawn ---------------------------------------------------------------

    def _fixed(self) -> InputRows:
        """Draw which of those are named that the first write has fixed."""
        schema, draw = self._world.schema, self._dice
        names = [*schema.keys, *self._world.columns, *(["note"] if draw.random() < 0.03 else [])]
        own = {
            "keys": ",".join(schema.keys),
            "sequenceBy": ",".join(field.name for field in schema.order),
            "sequenceScope": "" if schema.scope is Scope.ARRIVAL else schema.scope.value,
            "hashPrefix": str(schema.hash_prefix),
        }
        if schema.engine.kind is not Engine.AGGREGATION:
            own["mergeEngine"] = schema.engine.kind.value
        found = {name: text for name, text in own.items() if text and draw.random() < 0.3}
        # The tables of these worlds gain columns at any time.
        return {"path": "/unused", "columnList": ",".join(names), "mergeSchema": "true", **found}

    def _drawn(self) -> InputRows:
        world, draw = self._world, self._dice
        rare: dict[str, list[str]] = {
            "maxBacklogEpochs": ["8", "50"],
            "maxBacklogBytes": ["1000000"],
            "onFull": ["wait", "reject"],
            "onFullTimeout": ["0 seconds", "1 second"],
            "priority": ["-500", "7"],
            "backpressure": ["true", "false"],
            PROPERTY: self._retentions(),
        }
        if world.is_indexed:
            rare["indexBy"] = [*world.columns[:2], ",".join(world.columns[:2])]
        found = {name: draw.choice(texts) for name, texts in rare.items() if draw.random() < 0.06}
        if world.may_fail_ties and draw.random() < 0.4:
            found["ties"] = draw.choice([Ties.LAST, Ties.FAIL]).value
        if world.may_gain_quarantine and draw.random() < 0.4:
            found["onError"] = ErrorPolicy.QUARANTINE.value
        return found

    def _retentions(self) -> list[str]:
        own = self._world.retention
        is_for_ever = TombstoneRetention.parse(own).is_for_ever
        return [own] if is_for_ever else [own, "0 epochs", "2 epochs"]

    def _forbidden(self) -> list[tuple[str, InputRows]]:
        """Return the changes that are refused."""
        schema, columns = self._world.schema, self._world.columns
        others = {
            "keys": columns[0],
            "hashPrefix": str(1 - schema.hash_prefix) if PREFIX in schema.keys else "",
            "sequenceBy": columns[0],
            "mergeEngine": next(e.value for e in Engine if self._is_another(e)),
            "columnList": ",".join([*schema.keys[1:], *columns]),
        }
        if schema.order:
            scopes = (Scope.TABLE, Scope.EPOCH)
            others["sequenceScope"] = next(s.value for s in scopes if s is not schema.scope)
        if not schema.engine.folds:
            is_first = schema.ties is Ties.FIRST
            others["ties"] = (Ties.LAST if is_first else Ties.FIRST).value
        is_inline = schema.on_error is ErrorPolicy.INLINE
        policy = ErrorPolicy.QUARANTINE if is_inline else ErrorPolicy.INLINE
        others["onError"] = policy.value
        return [(name, {name: text}) for name, text in others.items() if text]

    def _is_another(self, kind: Engine) -> bool:
        return kind not in (self._world.schema.engine.kind, Engine.AGGREGATION)


def dealt_anew(script: Script, dice: Random) -> Script:
    """Return the rows of an epoch as other tasks have them, in their order."""
    tasks: Script = [[] for _ in script]
    for command in (each for task in script for each in task):
        dice.choice(tasks).append(command)
    return tasks
