"""The formats of inputs that Spark's readers know: those of the engine, and Python sources."""

from __future__ import annotations

from pyspark_upsertflow.python_input import PythonKind
from spark_upsert.streams.planner.kinds import KINDS as OF_THE_ENGINE
from spark_upsert.streams.planner.kinds import Kinds

KINDS: Kinds = {**OF_THE_ENGINE, "python": PythonKind()}
