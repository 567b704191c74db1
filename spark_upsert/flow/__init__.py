"""Flows: graphs of operators with parallel regions, for Spark or one process (docs/adr/0041).

`Flow` builds a logical graph, `expanded` gives its physical replicas, `fused` assigns them to
processing elements.
"""

from spark_upsert.flow.builder import Flow, Output
from spark_upsert.flow.expand import Connection, Physical, Replica, Splitter, SplitterKind, expanded
from spark_upsert.flow.fusion import (
    PE,
    Automatic,
    FusedGraph,
    Influence,
    Legacy,
    Manual,
    Scheme,
    fused,
)
from spark_upsert.flow.graph import (
    ArrowSource,
    ChannelPath,
    CollectSink,
    Edge,
    Graph,
    InputRows,
    LogicalOperator,
    OperatorKind,
    Parallel,
    PartitionBy,
    Placement,
    PythonFunction,
    TableSink,
    TableSource,
    Work,
    by_channel,
    by_replica,
)
from spark_upsert.flow.rescale import WidthChange, change_of, changed_width

__all__ = [
    "PE",
    "ArrowSource",
    "Automatic",
    "ChannelPath",
    "CollectSink",
    "Connection",
    "Edge",
    "Flow",
    "FusedGraph",
    "Graph",
    "Influence",
    "InputRows",
    "Legacy",
    "LogicalOperator",
    "Manual",
    "OperatorKind",
    "Output",
    "Parallel",
    "PartitionBy",
    "Physical",
    "Placement",
    "PythonFunction",
    "Replica",
    "Scheme",
    "Splitter",
    "SplitterKind",
    "TableSink",
    "TableSource",
    "WidthChange",
    "Work",
    "by_channel",
    "by_replica",
    "change_of",
    "changed_width",
    "expanded",
    "fused",
]
