"""Tasks: a plan of operators over Arrow batches, fed split by split and clean at every barrier.

`plan` says what is done, as values; `task` runs it. The names below are the public ones.
"""

from spark_upsert.plan.aggregates import Aggregate
from spark_upsert.plan.expressions import bind, bind_condition
from spark_upsert.plan.nodes import (
    ArrowScan,
    AssignUniqueId,
    ChangeScan,
    FileScan,
    Filter,
    Group,
    HashJoin,
    How,
    IndexLookupJoin,
    Limit,
    LocalPartition,
    MergeJoin,
    MixedUnion,
    Named,
    Node,
    On,
    Project,
    TableScan,
    Unnest,
    Values,
)
from spark_upsert.plan.text import plan_from_json
from spark_upsert.task.operators.lookups import ArrowLookup, Lookup, TableLookup
from spark_upsert.task.states import Phase
from spark_upsert.task.statistics import SplitCounts, Statistics
from spark_upsert.task.task import Task

__all__ = [
    "Aggregate",
    "ArrowLookup",
    "ArrowScan",
    "AssignUniqueId",
    "ChangeScan",
    "FileScan",
    "Filter",
    "Group",
    "HashJoin",
    "How",
    "IndexLookupJoin",
    "Limit",
    "LocalPartition",
    "Lookup",
    "MergeJoin",
    "MixedUnion",
    "Named",
    "Node",
    "On",
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
]
