"""Parallel regions: say once what is logically one operator, and how many times it runs.

`Flow` builds a logical graph, `expanded` gives what runs.
"""

from spark_upsert.flow.builder import Flow, Output
from spark_upsert.flow.channels import Channel
from spark_upsert.flow.expansion import (
    Connection,
    Physical,
    Replica,
    Splitter,
    SplitterKind,
    expanded,
)
from spark_upsert.flow.graph import (
    Composite,
    Graph,
    Operator,
    OperatorKind,
    Parallel,
    PartitionBy,
    Placement,
    Stream,
    by_channel,
    by_replica,
)
from spark_upsert.flow.work import (
    ArrowSource,
    Collected,
    PythonFunction,
    TableSink,
    TableSource,
    Work,
)

__all__ = [
    "ArrowSource",
    "Channel",
    "Collected",
    "Composite",
    "Connection",
    "Flow",
    "Graph",
    "Operator",
    "OperatorKind",
    "Output",
    "Parallel",
    "PartitionBy",
    "Physical",
    "Placement",
    "PythonFunction",
    "Replica",
    "Splitter",
    "SplitterKind",
    "Stream",
    "TableSink",
    "TableSource",
    "Work",
    "by_channel",
    "by_replica",
    "expanded",
]
