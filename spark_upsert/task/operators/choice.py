"""From a node of a plan to the operator that runs it.

It knows all operators, so that it is loaded when a plan has a node above its scan
(`task.pipelines`), and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from spark_upsert.errors import PlanError
from spark_upsert.model.names import find_repeated
from spark_upsert.plan.expressions import bind, bind_condition
from spark_upsert.plan.nodes import (
    AssignUniqueId,
    Filter,
    Group,
    IndexLookupJoin,
    Join,
    Limit,
    MergeJoin,
    Node,
    Project,
    Unnest,
)
from spark_upsert.task.operators.aggregation import aggregation
from spark_upsert.task.operators.hash_join import HashJoinRows
from spark_upsert.task.operators.join_rows import SHOWS_RIGHT_ALONE
from spark_upsert.task.operators.lookup_join import LookupJoinRows
from spark_upsert.task.operators.lookups import Lookup
from spark_upsert.task.operators.merge_join import MergeJoinRows
from spark_upsert.task.operators.operator import BatchSource, Operator, Streaming
from spark_upsert.task.operators.rows import limited, numbered, unnested


def operator_of(
    node: Node,
    schema: pa.Schema,
    *,
    right: BatchSource | None,
    lookup: Lookup | None,
    drop_input: Callable[[str], None],
) -> Operator:
    """Return the operator that runs a node.

    Parameters
    ----------
    node : Node
    schema : pyarrow.Schema
        The columns that come to it, of a join from its left side.
    right : Consumer, optional
        The rows of the right side, of a join.
    lookup : Lookup, optional
        The place where an index lookup join looks keys up.
    drop_input : callable
        Makes all below a node give nothing until the barrier (`Pipelines.drop_input`).

    Raises
    ------
    PlanError
        The node cannot be run, or not over these columns.
    """
    match node:
        case Filter():
            return Streaming(schema, bind_condition(node.where, schema).true_rows)
        case Project():
            return _project(node, schema)
        case Unnest():
            return unnested(node, schema)
        case Limit():
            return limited(node, schema)
        case AssignUniqueId():
            return numbered(node, schema)
        case Group():
            return aggregation(node, schema)
        case Join():
            assert right is not None, "a join without the rows of its right side"
            if isinstance(node, MergeJoin):
                return MergeJoinRows(node, schema, right, drop_input)
            return HashJoinRows(node, schema, right)
        case IndexLookupJoin():
            if lookup is None:
                raise PlanError(
                    "nothing says where its keys are looked up.",
                    hint=f"give the task a lookup: lookups={{'{node.id}': ...}}.",
                )
            return LookupJoinRows(node, schema, lookup)
        case _:
            raise PlanError(f"a {node.kind} cannot be run.", hint="use another node.")


def is_silent(node: Node) -> bool:
    """Say whether the operator of a node gives no rows when none came to it."""
    match node:
        case Group():
            return bool(node.keys)
        case Join():
            return node.how not in SHOWS_RIGHT_ALONE
        case _:
            return True


def _project(node: Project, schema: pa.Schema) -> Streaming:
    names = [name for name, _ in node.columns]
    repeated = find_repeated(names, is_exact=True)
    if repeated is not None:
        raise PlanError(f"two columns are called '{repeated[0]}'.", hint="rename one of them.")
    bound = [bind(expression, schema) for _, expression in node.columns]
    given = pa.schema([pa.field(name, each.type) for name, each in zip(names, bound, strict=True)])

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([each(batch) for each in bound], schema=given)

    return Streaming(given, apply)
