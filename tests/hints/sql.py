"""Hints of expressions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping

import pyarrow as pa

from spark_upsert.task import (
    Aggregate,
    ArrowScan,
    Group,
    HashJoin,
    JoinKeys,
    JoinType,
    Values,
    bind,
    bind_condition,
)
from tests.hints.hint import Told, follows
from tests.hints.task import rows_of

ROWS = pa.record_batch(
    {
        "n": [1, 0],
        "s": ["a", "2"],
        "p": [{"x": 1}, {"x": 2}],
        "b": [True, False],
        "l": [[1], [2]],
        "now": [2, 2],
        "f": [0.5, 1.5],
    }
)

TEXTS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    (
        "plan.sql:parse_sql:2",
        " + ".join(["n"] * 2000),
        {"compute a part of it in a projection below": "n + n"},
    ),
    (
        "plan.sql:parse_sql:2",
        " OR ".join(f"n = {number}" for number in range(500)),
        {"or use IN": f"n IN ({', '.join(map(str, range(500)))})"},
    ),
    (
        "plan.sql:_Parser.any",
        "(" * 60 + "n" + ")" * 60,
        {"compute a part of it in a projection below": "n"},
    ),
    (
        "plan.sql:_tokens",
        "s = ‘a’",
        {
            "put texts between single quotes": "s = 'a'",
            "odd names between backticks": "`s` = 'a'",
        },
    ),
    (
        "plan.sql:_Parser._type",
        "CAST(n AS STRNG)",
        {"Did you mean 'STRING'": "CAST(n AS STRING)"},
    ),
    (
        "plan.sql:_Parser._decimal",
        "CAST(n AS DECIMAL(50, 2))",
        {"write DECIMAL(38, 2)": "CAST(n AS DECIMAL(38, 2))"},
    ),
    ("plan.sql:_Parser._call:2", "uper(s)", {"Did you mean 'UPPER'": "upper(s)"}),
    (
        "plan.sql:_Parser._call:3",
        "upper(s, s)",
        {"docs/tasks.md lists the functions": "upper(s)"},
    ),
    (
        "plan.sql:_Parser._unexpected",
        "s RLIKE 'a.*'",
        {"docs/tasks.md lists what expressions may hold": "s LIKE 'a%'"},
    ),
    (
        "plan.sql:_Parser._unexpected:2",
        "n >",
        {"docs/tasks.md lists what expressions may hold": "n > 1"},
    ),
    ("plan.expressions:_Evaluation._column", "n.x", {"only structs have fields": "p.x"}),
    (
        "plan.expressions:_no_value",
        "10 DIV n",
        {"by CASE WHEN": "CASE WHEN n <> 0 THEN 10 DIV n END"},
    ),
    ("plan.functions:_text", "s LIKE s", {"write it in quotes": "s LIKE 'a'"}),
    ("plan.functions:_whole", "round(n, n)", {"write 2": "round(n, 2)"}),
    ("plan.functions:_whole:2", "substring(s, 0)", {"write 1": "substring(s, 1)"}),
    ("plan.functions:_whole:2", "round(f, 1099511627776)", {"write 38": "round(f, 38)"}),
    (
        "plan.functions:_like",
        "s LIKE 'a\\b'",
        {"write two for one that means itself": "s LIKE 'a\\\\b'"},
    ),
    (
        "plan.functions:refused",
        "s || n",
        {"CAST(... AS ...) changes a type": "s || CAST(n AS STRING)"},
    ),
    ("plan.expressions:bind", "n > 1 DIV 0", {"write another there": "n > 1 DIV 2"}),
    ("plan.expressions:bind", "n > 1 DIV 0", {"or NULL": "n > NULL"}),
    *(
        (
            "plan.casts:cast",
            f"CAST({name} AS TIMESTAMP)",
            {"CAST(CAST(x AS BIGINT) AS TIMESTAMP)": f"CAST(CAST({name} AS BIGINT) AS TIMESTAMP)"},
        )
        for name in ("f", "1.5")
    ),
    *(
        (
            "plan.casts:cast",
            f"CAST(TIMESTAMP '2026-01-31' AS {name})",
            {
                f"CAST(CAST(x AS BIGINT) AS {name})": (
                    f"CAST(CAST(TIMESTAMP '2026-01-31' AS BIGINT) AS {name})"
                )
            },
        )
        for name in ("DOUBLE", "DECIMAL(19, 0)")
    ),
    (
        "plan.casts:cast",
        "CAST(DATE '2026-01-31' AS BIGINT)",
        {"cast twice": "CAST(CAST(DATE '2026-01-31' AS TIMESTAMP) AS BIGINT)"},
    ),
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


@follows("plan.expressions:_no_value")
def _(told: Told) -> None:
    with told:
        bind("10 DIV n", ROWS.schema)(ROWS)
    told("leave such rows out by a filter before")
    bind("10 DIV n", ROWS.schema)(bind_condition("n <> 0", ROWS.schema).true_rows(ROWS))


@follows("plan.expressions:bind_condition")
def _(told: Told) -> None:
    with told:
        bind_condition("n + 1", ROWS.schema)
    told("compare it with something")
    bind_condition("n + 1 > 1", ROWS.schema)


@follows("plan.sql:_Parser._call")
def _(told: Told) -> None:
    with told:
        bind("sum(n)", ROWS.schema)
    told("use an aggregation")
    plan = Group(
        id="sum",
        input=ArrowScan(id="rows", schema=ROWS.schema),
        aggregates=(Aggregate.of("n", "sum", "n"),),
    )
    assert rows_of(plan, {"rows": [ROWS]}) == [{"n": 1}]


@follows("plan.sql:not_of_one_row")
def _(told: Told) -> None:
    with told:
        bind("n > now()", ROWS.schema)
    told("a column of this name is read without brackets")
    told("store such values in a column, and read that")
    assert bind("n < now", ROWS.schema)(ROWS).to_pylist() == [True, True]


def value_of(text: str) -> object:
    """Return the value of an expression without columns."""
    return bind(text, ROWS.schema)(ROWS)[0].as_py()


@follows("plan.sql:_Parser._number")
def _(told: Told) -> None:
    with told:
        value_of("1.5 < 1" + "0" * 40)
    told("write it as a DOUBLE, with an exponent: 1e40")
    assert value_of("1.5 < 1e40") is True


@follows("plan.sql:_Parser._double")
def _(told: Told) -> None:
    with told:
        value_of("1.5 < 1e400")
    told("write CAST('Infinity' AS DOUBLE) for what is above all numbers")
    assert value_of("1.5 < CAST('Infinity' AS DOUBLE)") is True


@follows("plan.sql:_Parser._moment")
def _(told: Told) -> None:
    with told:
        value_of("DATE '31.1.2026'")
    told("write DATE '2026-01-31'")
    assert value_of("DATE '2026-01-31' > DATE '2026-01-30'") is True
    with told:
        value_of("TIMESTAMP '2026-01-31 noon'")
    told("TIMESTAMP '2026-01-31 12:00:00', which is UTC")
    assert value_of("TIMESTAMP '2026-01-31 12:00:00' < TIMESTAMP '2026-01-31 12:00:00-01:00'")


@follows("plan.expressions:_too_deep")
def _(told: Told) -> None:
    deep = " OR ".join(["b"] * 199)

    def called(levels: int) -> object:
        return called(levels - 1) if levels else bind(deep, ROWS.schema)

    with told:
        called(sys.getrecursionlimit() - len(inspect.stack()) - 60)
    told("compute a part of it in a projection below")
    bind(" OR ".join(["b"] * 99), ROWS.schema)


@follows("plan.sql:parse_sql")
def _(told: Told) -> None:
    values = list(range(3000))
    with told:
        bind(f"n IN ({', '.join(map(str, values))})", ROWS.schema)
    told("join with a table of the values")
    plan = HashJoin(
        id="of",
        left=ArrowScan(id="rows", schema=ROWS.schema),
        right=Values(id="values", rows=pa.table({"value": values})),
        how=JoinType.SEMI,
        on=JoinKeys.pairs(("n",), ("value",)),
    )
    assert len(rows_of(plan, {"rows": [ROWS]})) == 2


@follows("plan.sql:_Parser.any")
def _(told: Told) -> None:
    with told:
        bind("(" * 500 + "n" + ")" * 500, ROWS.schema)
    told("compute a part of it in a projection below")
    bind("(((n)))", ROWS.schema)
