"""Tasks: a plan of operators over Arrow batches, fed split by split and clean at every barrier.

`plan` says what is done, as values; `task` runs it. The names below are the public ones.
"""

from spark_upsert.plan.expressions import bind, bind_condition
from spark_upsert.task.operators.lookups import ArrowLookup, Lookup, TableLookup
from spark_upsert.task.plan import (
    Aggregate,
    Aggregation,
    ArrowScan,
    AssignUniqueId,
    ChangeScan,
    FileScan,
    Filter,
    HashJoin,
    IndexLookupJoin,
    JoinKind,
    Limit,
    LocalPartition,
    MergeJoin,
    MixedUnion,
    Node,
    Project,
    TableScan,
    Unnest,
    Values,
)
from spark_upsert.task.plan_json import plan_from_json, plan_to_json
from spark_upsert.task.states import Phase
from spark_upsert.task.statistics import SplitCounts, Statistics
from spark_upsert.task.task import Task

__all__ = [
    "Aggregate",
    "Aggregation",
    "ArrowLookup",
    "ArrowScan",
    "AssignUniqueId",
    "ChangeScan",
    "FileScan",
    "Filter",
    "HashJoin",
    "IndexLookupJoin",
    "JoinKind",
    "Limit",
    "LocalPartition",
    "Lookup",
    "MergeJoin",
    "MixedUnion",
    "Node",
    "Phase",
    "Project",
    "SplitCounts",
    "Statistics",
    "TableLookup",
    "TableScan",
    "Task",
    "Unnest",
    "Values",
    "bind",
    "bind_condition",
    "plan_from_json",
    "plan_to_json",
]
