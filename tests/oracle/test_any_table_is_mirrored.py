"""A mirror of a table of any scope, engine, error policy and retention shows what the table does.

The machine of `test_any_table_agrees_with_its_rules`, with publications between its steps: what a
table holds is judged there, whether its mirror holds the same is judged here.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from spark_upsert.delta import publish as plan
from spark_upsert.delta.publish import Mirror, check_mirror
from tests.oracle.test_any_table_agrees_with_its_rules import (
    FORGETFUL,
    KINDS,
    AnyTableAgreesWithItsRules,
)
from tests.simulation.world import RETENTIONS
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.stores import MemoryStore


class AnyTableIsMirrored(AnyTableAgreesWithItsRules):
    """The same table, and a process that publishes it now and then."""

    @initialize(
        drawn=st.sampled_from(FORGETFUL)
        | st.tuples(st.sampled_from(KINDS), st.sampled_from(RETENTIONS))
    )
    def create(self, drawn: tuple[tuple[Any, int], str]) -> None:
        super().create(drawn)
        self.target = MemoryStore()
        self.mirror = self._mirror()

    @invariant()
    def the_observer_finds_nothing(self) -> None:
        """Leave what a table holds to the other machine, which looks behind each step."""

    def _mirror(self) -> Mirror:
        table = self.world.open()
        return Mirror(table.log, table.store, self.target)

    @rule(by_key=st.booleans(), begins_anew=st.booleans())
    def publish(self, by_key: bool, begins_anew: bool) -> None:
        if begins_anew:
            self.mirror = self._mirror()
        with patch.object(plan, "_SETTLED_FROM", 0 if by_key else 8):
            self.mirror.publish()
        rows = DeltaTable(self.target).rows()
        assert canonical(rows) == canonical(self.table.snapshot())
        assert not list(check_mirror(self.mirror))


TestAnyTableIsMirrored = AnyTableIsMirrored.TestCase
TestAnyTableIsMirrored.settings = settings(stateful_step_count=25)
