"""Spark's own answers to expressions, many at a time, row by row, with ANSI mode on.

An error of ANSI mode would end the query of all expressions; so each stands in a struct within
Spark's own `TryEval`, which is NULL where evaluation fails: a NULL value is a struct that holds
NULL. Rows are few and local, so that Spark computes the projection on its driver, without a job.
Its optimizer's rules that evaluate or rewrite expressions are off, so that what is seen is what an
expression means, and not that another one was computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ArithmeticException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.sql_answers import Answers, Refused, answers_of, told_apart
from tests.support.sql_differences import NO_VALUE

_RULES = (
    *("ConstantFolding", "NullPropagation", "BooleanSimplification", "SimplifyConditionals"),
    *("SimplifyBinaryComparison", "OptimizeIn", "ReorderAssociativeOperator", "SimplifyCasts"),
    *("PushFoldableIntoBranches", "NullDownPropagation", "LikeSimplification"),
    *("UnwrapCastInBinaryComparison", "RemoveDispensableExpressions", "FoldablePropagation"),
)
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Else a part that occurs twice, as in NULLIF, is computed apart, before `TryEval`.
    "spark.sql.alwaysInlineCommonExpr": "true",
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in _RULES
    ),
}


class Judge:
    """Evaluates expressions by Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # Spark's own expressions have no door in Python.
        self._jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._parser: Any = session.sessionState().sqlParser()

    @contextmanager
    def presiding(self) -> Iterator[Judge]:
        """Set the session up for judging, and back."""
        settings = self._spark.conf
        before = {name: value for name, value in settings.getAll.items() if name in _SETTINGS}
        for name, value in _SETTINGS.items():
            settings.set(name, value)
        try:
            yield self
        finally:
            for name in _SETTINGS:
                settings.unset(name)
            for name, value in before.items():
                settings.set(name, value)

    def answers(self, texts: Sequence[str], rows: pa.RecordBatch) -> list[Answers | Refused]:
        """Return Spark's answers to expressions, for each row, in their order."""
        schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
        frame = self._spark.createDataFrame(pa.Table.from_batches([rows]), schema)
        refused: dict[int, Refused] = {}
        try:
            found = self._collected(frame, dict(enumerate(texts)))
        except (AnalysisException, ParseException):  # Of one of them: it does not matter which.
            refused = self._refused(frame, texts)
            others = {i: text for i, text in enumerate(texts) if i not in refused}
            found = self._collected(frame, others)
        return [refused[i] if i in refused else found[f"c{i}"] for i in range(len(texts))]

    def aggregate(self, text: str, rows: pa.RecordBatch) -> pa.Scalar:
        """Return the value of an aggregate over all rows; NULL if Spark has none."""
        frame = self._spark.createDataFrame(pa.Table.from_batches([rows]))
        frame = frame.selectExpr(f"{text} AS value")
        type_ = frame.limit(0).toArrow()["value"].type
        try:
            return frame.toArrow()["value"][0]
        except ArithmeticException:
            return pa.scalar(None, type_)

    def _refused(self, frame: DataFrame, texts: Sequence[str]) -> dict[int, Refused]:
        found: dict[int, Refused] = {}
        for index, text in enumerate(texts):
            try:
                frame.select(self._tried(text))
            except (AnalysisException, ParseException) as error:
                found[index] = Refused(str(error).splitlines()[0])
        return found

    def _collected(self, frame: DataFrame, texts: Mapping[int, str]) -> dict[str, Answers]:
        columns = [self._tried(text).alias(f"c{index}") for index, text in texts.items()]
        table = frame.select(*columns).toArrow()
        return {name: _unwrapped(table[name].combine_chunks()) for name in table.column_names}

    def _tried(self, text: str) -> Column:
        from pyspark.sql.classic.column import Column as ClassicColumn

        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        # A struct that is NULL must not have a field that Spark knows to be none.
        parsed = expressions.KnownNullable(self._parser.parseExpression(text))
        held = expressions.CreateStruct.create(self._jvm.PythonUtils.toSeq([parsed]))
        utils = self._jvm.org.apache.spark.sql.classic.ExpressionUtils
        return ClassicColumn(utils.column(expressions.TryEval(held)))


def _unwrapped(structs: pa.StructArray) -> Answers:
    """Return the answers in structs: there is none where there is no struct."""
    found = answers_of(structs.field(0))
    are_there = structs.is_valid().to_pylist()
    values = (
        value if is_there else NO_VALUE
        for value, is_there in zip(found.values, are_there, strict=True)
    )
    return Answers(found.kind, tuple(map(told_apart, values)))
