"""Parallel regions: say once what is logically one operator, and how many times it runs.

`Flow` builds a logical graph, `expanded` gives what runs, `fused` what of it shares a task.
"""

from spark_upsert.flow.builder import Flow, Output
from spark_upsert.flow.channels import ChannelPath
from spark_upsert.flow.estimates import Estimate
from spark_upsert.flow.expansion import (
    Connection,
    Physical,
    Replica,
    Splitter,
    SplitterKind,
    expanded,
)
from spark_upsert.flow.fusion.cost import Costs, HandOff
from spark_upsert.flow.fusion.fusion import (
    PE,
    Automatic,
    Fused,
    Influence,
    Legacy,
    Manual,
    Scheme,
    fused,
    predicted,
)
from spark_upsert.flow.fusion.models import Prediction
from spark_upsert.flow.fusion.sampling import sampled
from spark_upsert.flow.graph import (
    Edge,
    Graph,
    LogicalOperator,
    OperatorKind,
    Parallel,
    PartitionBy,
    Placement,
    by_channel,
    by_replica,
)
from spark_upsert.flow.width import (
    WidthChange,
    change_of,
    changed_width,
)
from spark_upsert.flow.work import (
    ArrowSource,
    Collected,
    Given,
    PythonFunction,
    TableSink,
    TableSource,
    Work,
)

__all__ = [
    "PE",
    "ArrowSource",
    "Automatic",
    "ChannelPath",
    "Collected",
    "Connection",
    "Costs",
    "Edge",
    "Estimate",
    "Flow",
    "Fused",
    "Given",
    "Graph",
    "HandOff",
    "Influence",
    "Legacy",
    "LogicalOperator",
    "Manual",
    "OperatorKind",
    "Output",
    "Parallel",
    "PartitionBy",
    "Physical",
    "Placement",
    "Prediction",
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
    "predicted",
    "sampled",
]
