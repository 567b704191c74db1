"""Hints of expressions."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from spark_upsert.task import Aggregate, Aggregation, ArrowScan, bind, bind_condition
from tests.hints.hint import Told, follows
from tests.hints.task import rows_of

ROWS = pa.record_batch(
    {"n": [1, 0], "s": ["a", "2"], "p": [{"x": 1}, {"x": 2}], "b": [True, False], "l": [[1], [2]]}
)

TEXTS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    (
        "task.sql:parse_sql:2",
        " + ".join(["n"] * 2000),
        {"compute a part of it in a projection below": "n + n"},
    ),
    (
        "task.sql:parse_sql:2",
        " OR ".join(f"n = {number}" for number in range(500)),
        {"or use IN": f"n IN ({', '.join(map(str, range(500)))})"},
    ),
    (
        "task.sql:_tokens",
        "s = ‘a’",
        {
            "texts stand between single quotes": "s = 'a'",
            "odd names between backticks": "`s` = 'a'",
        },
    ),
    (
        "task.sql:_Parser._type",
        "CAST(n AS STRNG)",
        {"Did you mean 'STRING'": "CAST(n AS STRING)"},
    ),
    (
        "task.sql:_Parser._decimal",
        "CAST(n AS DECIMAL(50, 2))",
        {"write DECIMAL(38, 2)": "CAST(n AS DECIMAL(38, 2))"},
    ),
    ("task.sql:_Parser._call:2", "uper(s)", {"Did you mean 'UPPER'": "upper(s)"}),
    ("task.expressions:_Evaluation._column", "n.x", {"only structs have fields": "p.x"}),
    (
        "task.expressions:_no_value",
        "10 DIV n",
        {"by CASE WHEN": "CASE WHEN n <> 0 THEN 10 DIV n END"},
    ),
    ("task.expressions:_text", "s LIKE s", {"write it in quotes": "s LIKE 'a'"}),
    ("task.expressions:_whole", "round(n, n)", {"write 2": "round(n, 2)"}),
)


def of_text(site: str, wrong: str, advice: Mapping[str, str]) -> None:
    @follows(site)
    def _(told: Told) -> None:
        with told:
            bind(wrong, ROWS.schema)(ROWS)
        for quoted, right in advice.items():
            told(quoted)
            bind(right, ROWS.schema)(ROWS)


for _site, _wrong, _advice in TEXTS:
    of_text(_site, _wrong, _advice)


@follows("task.expressions:_no_value")
def _(told: Told) -> None:
    with told:
        bind("10 DIV n", ROWS.schema)(ROWS)
    told("leave such rows out by a filter before")
    bind("10 DIV n", ROWS.schema)(bind_condition("n <> 0", ROWS.schema).true_rows(ROWS))


@follows("task.expressions:bind_condition")
def _(told: Told) -> None:
    with told:
        bind_condition("n + 1", ROWS.schema)
    told("compare it with something")
    bind_condition("n + 1 > 1", ROWS.schema)


@follows("task.sql:_Parser._call")
def _(told: Told) -> None:
    with told:
        bind("sum(n)", ROWS.schema)
    told("use an aggregation")
    plan = Aggregation(
        id="sum",
        input=ArrowScan(id="rows", schema=ROWS.schema),
        aggregates=(Aggregate("n", "sum", "n"),),
    )
    assert rows_of(plan, {"rows": [ROWS]}) == [{"n": 1}]
