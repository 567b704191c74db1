"""How urgent the inputs of a stream are: what the read says of one, else what it says itself."""

from __future__ import annotations

from collections.abc import Iterable

from spark_upsert.errors import about_input
from spark_upsert.options.query import QueryOptions
from spark_upsert.schedule import Standing
from spark_upsert.source.input import Ranked
from spark_upsert.source.inputs import Inputs


class Standings:
    """What is known of the importance of inputs.

    Parameters
    ----------
    inputs : Inputs
    query : QueryOptions
    """

    def __init__(self, inputs: Inputs, query: QueryOptions) -> None:
        self._inputs = inputs
        self._query = query

    def of(self, names: Iterable[str]) -> dict[str, Standing]:
        """Return what is known of some, which were asked for their backlogs just now."""
        found: dict[str, Standing] = {}
        for name in names:
            priority = self._priority(name)
            if priority is not None:
                found[name] = Standing(manual=priority)
        return found

    def _priority(self, name: str) -> int | None:
        told = self._query.priorities.get(name)
        if told is not None:
            return told
        each = self._inputs[name]
        if not isinstance(each, Ranked):
            return None
        with about_input(name):
            return each.priority()
