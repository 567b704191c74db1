"""Tasks: operator plans over Arrow batches, fed by split and empty at every barrier.

`task.Task` runs a plan of `plan.nodes` (docs/tasks.md). The public names are imported on first
access.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_upsert.plan.aggregates import Aggregate
    from spark_upsert.plan.expressions import bind, bind_condition
    from spark_upsert.plan.json import plan_from_json
    from spark_upsert.plan.nodes import (
        ArrowScan,
        AssignUniqueId,
        ChangeScan,
        FileScan,
        Filter,
        Group,
        HashJoin,
        IndexLookupJoin,
        JoinKeys,
        JoinType,
        Limit,
        LocalPartition,
        MergeJoin,
        MixedUnion,
        Node,
        Project,
        ProjectedColumn,
        TableScan,
        Unnest,
        Values,
    )
    from spark_upsert.task.lifecycle import Phase, SplitCounts, Statistics
    from spark_upsert.task.lookup_join import ArrowLookup, Lookup, TableLookup
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
    "IndexLookupJoin",
    "JoinKeys",
    "JoinType",
    "Limit",
    "LocalPartition",
    "Lookup",
    "MergeJoin",
    "MixedUnion",
    "Node",
    "Phase",
    "Project",
    "ProjectedColumn",
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

_HOMES = {
    "Aggregate": "plan.aggregates",
    "ArrowLookup": "task.lookup_join",
    "ArrowScan": "plan.nodes",
    "AssignUniqueId": "plan.nodes",
    "ChangeScan": "plan.nodes",
    "FileScan": "plan.nodes",
    "Filter": "plan.nodes",
    "Group": "plan.nodes",
    "HashJoin": "plan.nodes",
    "IndexLookupJoin": "plan.nodes",
    "JoinKeys": "plan.nodes",
    "JoinType": "plan.nodes",
    "Limit": "plan.nodes",
    "LocalPartition": "plan.nodes",
    "Lookup": "task.lookup_join",
    "MergeJoin": "plan.nodes",
    "MixedUnion": "plan.nodes",
    "Node": "plan.nodes",
    "Phase": "task.lifecycle",
    "Project": "plan.nodes",
    "ProjectedColumn": "plan.nodes",
    "SplitCounts": "task.lifecycle",
    "Statistics": "task.lifecycle",
    "TableLookup": "task.lookup_join",
    "TableScan": "plan.nodes",
    "Task": "task.task",
    "Unnest": "plan.nodes",
    "Values": "plan.nodes",
    "bind": "plan.expressions",
    "bind_condition": "plan.expressions",
    "plan_from_json": "plan.json",
}

if not TYPE_CHECKING:  # Or any name would pass for one of ours.

    def __getattr__(name: str) -> Any:
        """Import a public name on first access."""
        if name not in _HOMES:
            raise AttributeError(f"module 'spark_upsert.task' has no attribute '{name}'")
        attribute = getattr(import_module(f"spark_upsert.{_HOMES[name]}"), name)
        globals()[name] = attribute
        return attribute
