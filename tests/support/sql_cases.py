"""Random expressions over random rows, each in our words and in Spark's, for the same meaning.

The two texts differ only where our meaning does on purpose (`tests.support.sql_differences`): that
is said once, here, by what Spark's text has more. Everything else must be equal, row by row.
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

from tests.support.sql_differences import FEWEST_DIGITS, as_bigint, cast_to, in_34_digits, to_whole

NUMBERS = ("whole", "decimal", "double", "float")
TIMES = ("date", "moment", "ntz")
KINDS = ("bool", *NUMBERS, "text", *TIMES)

_US = 1_000_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class ExpressionCase:
    """An expression: as we read it, as Spark reads it for the same, and the kind of its values."""

    text: str
    spark: str
    kind: str


# -- rows ------------------------------------------------------------------------------------

DOUBLES = (
    *(0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, 19.99, 1.005, 2.675, 0.5, 1.5, 2.5, -2.5),
    *(1e20, 1e-7, 1e300, 5e-324, 9007199254740993.0, 9.2e18, 1e16, 123456.789, -0.05, 1e-3, 1e7),
)
WHOLES = (0, 1, -1, 2, 3, 7, 10, 25, -49, 50, 99, 100, 127, -128, 1000, 32767, 99999)
WIDE = (2**31 - 1, -(2**31), 2**31, 2**53 + 1, 10**18, 2**63 - 1, -(2**63), 1_700_000_000)
TEXTS = (
    *("", " ", "12", " 12 ", "+7", "-3", "0x10", "0xFFFFFFFFFFFFFFFF", "1e3", "1.5", ".5", "5."),
    *(
        "abc",
        "NaN",
        "+nan",
        "nan",
        "Infinity",
        "-inf",
        "inf",
        "true",
        "T",
        "yes",
        "no",
        "0",
        "1",
        "-0",
    ),
    *("2026-01-31", "2026-1-3", "2026", "2026-01-31 12:30:00", "2026-01-31T12:30:00.123456Z"),
    *("2026-01-31 12:30:00+02:00", "0001-01-01", "9999-12-31 23:59:59.999999", "2026-02-30"),
    *("99999999999999999999", "1e-400", "1e400", "1d", "0x1p3", "\u0661\u0662", "a%b", "a_b"),
    *("a\\b", "\u00df", "\u00c9t\u00e9", "\u03a3\u03b1\u03c2", "\u0391\u03a3", "\U0001f600x"),
    *(
        "\u0130",
        "\ttab\n",
        "1_000",
        "  x y  ",
        "O'Neill",
        'say "hi"',
        '"',
        "s",
        "i64",
        "AbC",
        "19.99",
        "0.005",
        "-1.25E2",
    ),
    *("48151415102163378576555277819065061780", "1e-9999999", "-.", "1.2.3", "null", "t", "f"),
    *("2026-01-31 24:00:00", "2026-01-31 1:2:3", "12:30:00", "1970-01-01 00:00:00.1234567"),
)
SECONDS = (
    *(0, -1, 1, 86_399, 951_782_400, 1_769_823_000, -62_135_596_800, 253_402_300_799),
    *(-2_208_988_800, 4_102_444_800),
)
FRACTIONS = (0, 0, 1, 500_000, 123_000, 999_999)
DAYS = (0, -1, 1, 11_016, 20_484, -719_162, 2_932_896, -25_567)
DIGITS = ((2, 2), (4, 1), (5, 2), (10, 2), (10, 0), (18, 6), (19, 19), (28, 10), (38, 0), (38, 38))


def random_decimal(chance: random.Random, precision: int, scale: int) -> Decimal:
    """Return a number of some digits: small, just at a half, the widest, or any."""
    unscaled = chance.choice(
        (
            chance.randrange(10 ** chance.randint(1, precision)),
            10**precision - 1,
            int("5" * min(chance.randint(1, 3), precision)),
            min(5 * 10 ** max(scale - 2, 0), 10**precision - 1),
            0,
        )
    )
    return _scaled(chance.choice((unscaled, -unscaled)), scale)


def _scaled(unscaled: int, scale: int) -> Decimal:
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -scale))


def random_moment(chance: random.Random) -> datetime.datetime:
    second = chance.choice((*SECONDS, chance.randrange(2**32)))
    return _EPOCH + datetime.timedelta(seconds=second, microseconds=chance.choice(FRACTIONS))


def random_rows(chance: random.Random, row_count: int) -> pa.RecordBatch:
    """Return a batch with a column of each type, decimals of some precisions, and NULLs."""

    def column(type_: pa.DataType, drawn: Callable[[], Any]) -> pa.Array:
        values = (None if chance.random() < 0.12 else drawn() for _ in range(row_count))
        return pa.array(values, type_)

    def whole(bits: int) -> Callable[[], int]:
        end = 1 << (bits - 1)
        fitting = [each for each in (*WHOLES, *WIDE) if -end <= each < end]
        return lambda: chance.choice((chance.choice(fitting), chance.randrange(-end, end)))

    def double() -> float:
        some = chance.choice((chance.choice(DOUBLES), chance.uniform(-1000, 1000)))
        return chance.choice((some, round(some, 3) if math.isfinite(some) else some))

    def naive() -> datetime.datetime:
        return random_moment(chance).replace(tzinfo=None)

    found: dict[str, pa.Array] = {
        "b": column(pa.bool_(), lambda: chance.random() < 0.5),
        "i8": column(pa.int8(), whole(8)),
        "i16": column(pa.int16(), whole(16)),
        "i32": column(pa.int32(), whole(32)),
        "i64": column(pa.int64(), whole(64)),
        "small": column(pa.int64(), lambda: chance.choice(WHOLES)),
        "f": column(pa.float64(), double),
        "g": column(pa.float32(), double),
        "s": column(pa.string(), lambda: chance.choice(TEXTS)),
        "u": column(pa.string(), lambda: chance.choice(TEXTS)),
        "day": column(
            pa.date32(),
            lambda: (
                _EPOCH.date() + datetime.timedelta(chance.choice((*DAYS, chance.randrange(30_000))))
            ),
        ),
        "at": column(pa.timestamp("us", tz="UTC"), lambda: random_moment(chance)),
        "berlin": column(
            pa.timestamp("us", tz="Europe/Berlin"),
            lambda: chance.choice((_EPOCH, _EPOCH.replace(2026, 7, 1, 23, 30))),
        ),
        "naive": column(pa.timestamp("us"), naive),
    }
    for name in ("d", "e", "h"):
        digits = random_digits(chance)
        found[name] = column(pa.decimal128(*digits), partial(random_decimal, chance, *digits))
    return pa.RecordBatch.from_arrays(list(found.values()), list(found))


def random_digits(chance: random.Random) -> tuple[int, int]:
    """Return a precision and a scale."""
    precision = chance.randint(1, 38)
    return chance.choice((*DIGITS, (precision, chance.randint(0, precision)), (9, 2), (12, 4)))


COLUMNS: Mapping[str, Sequence[str]] = {
    "bool": ("b",),
    "whole": ("i8", "i16", "i32", "i64", "small", "small"),
    "decimal": ("d", "e", "h"),
    "double": ("f",),
    "float": ("g",),
    "text": ("s", "u"),
    "date": ("day",),
    "moment": ("at", "berlin"),
    "ntz": ("naive",),
}
TARGETS: Mapping[str, Sequence[str]] = {
    "bool": ("BOOLEAN",),
    "whole": ("TINYINT", "SMALLINT", "INT", "BIGINT", "BIGINT"),
    "double": ("DOUBLE",),
    "float": ("FLOAT",),
    "text": ("STRING",),
    "date": ("DATE",),
    "moment": ("TIMESTAMP",),
    "ntz": ("TIMESTAMP_NTZ",),
}


# -- expressions -----------------------------------------------------------------------------


def quoted(text: str, quote: str = "'") -> ExpressionCase:
    """Return a text as a literal between single or double quotes: with us, a backslash is one."""
    ours = text.replace(quote, quote * 2)
    spark = ours.replace("\\", "\\\\")
    return ExpressionCase(f"{quote}{ours}{quote}", f"{quote}{spark}{quote}", "text")


QUOTES = ("'", '"')


def widest(*numbers: ExpressionCase) -> str:
    """Return the kind that numbers become beside one another."""
    kinds = {each.kind for each in numbers if each.text != "NULL"} or {numbers[0].kind}
    if kinds == {"float"}:
        return "float"
    return next(kind for kind in ("double", "float", "decimal", "whole") if kind in kinds).replace(
        "float", "double"
    )


class Expressions:
    """Draws expressions of a kind, down to a depth."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def any(self, depth: int) -> ExpressionCase:
        """Return an expression of any kind."""
        return self.of(self._chance.choice(KINDS), depth)

    def of(self, kind: str, depth: int) -> ExpressionCase:
        """Return an expression of a kind, or of one that takes its place."""
        if depth == 0:
            return self._leaf(kind)
        draws: list[Callable[[str, int], ExpressionCase]] = [
            self._leaf_at,
            self._choice,
            self._cast,
        ]
        draws += {
            "bool": [self._compared, self._compared, self._logic, self._tested, self._matched],
            "whole": [self._arithmetic, self._to_whole, self._measured],
            "decimal": [self._arithmetic, self._one_number],
            "double": [self._arithmetic, self._divided, self._one_number],
            "float": [self._arithmetic, self._one_number],
            "text": [self._worded, self._worded],
        }.get(kind, [])
        return self._chance.choice(draws)(kind, depth)

    # -- leaves

    def _leaf_at(self, kind: str, depth: int) -> ExpressionCase:
        return self._leaf(kind)

    def _leaf(self, kind: str) -> ExpressionCase:
        if self._chance.random() < 0.65:
            name = self._chance.choice(COLUMNS[kind])
            return ExpressionCase(name, name, kind)
        if self._chance.random() < 0.06:
            return ExpressionCase(
                "NULL", "CAST(NULL AS BOOLEAN)" if kind == "bool" else "NULL", kind
            )
        return self._literal(kind)

    def _literal(self, kind: str) -> ExpressionCase:
        chance = self._chance
        match kind:
            case "bool":
                text = chance.choice(("TRUE", "FALSE"))
                return ExpressionCase(text, text, kind)
            case "whole":
                value = chance.choice((*WHOLES, *WHOLES, *WIDE))
                if value == -(2**63):
                    return ExpressionCase(f"({value})", f"CAST('{value}' AS BIGINT)", kind)
                return ExpressionCase(f"({value})", f"({value}L)", kind)
            case "decimal":
                precision, scale = random_digits(chance)
                number = random_decimal(chance, precision, max(scale, 1))
                text = f"({chance.choice((number, Decimal('19.99'), Decimal('2.5'))):f})"
                return ExpressionCase(text, text, kind)
            case "double" | "float":
                double = chance.choice([each for each in DOUBLES if math.isfinite(each)])
                text = f"({double:.17e})" if chance.random() < 0.3 else f"({double!r})"
                text = text if "e" in text else f"{text[:-1]}e0)"
                return ExpressionCase(text, text, "double")
            case "text":
                return quoted(chance.choice(TEXTS), chance.choice(QUOTES))
            case "date":
                day = chance.choice(("2026-01-31", "0001-01-01", "9999-12-31", "1970-01-01"))
                text = f"DATE '{day}'"
                return ExpressionCase(text, text, kind)
            case "moment":
                text = random_moment(chance).strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0")
                text = chance.choice((text, text[:19], text[:10], "2026-07-01T12:00:00+02:00"))
                return ExpressionCase(f"TIMESTAMP '{text}'", f"TIMESTAMP '{text}'", kind)
        name = COLUMNS[kind][0]
        return ExpressionCase(name, name, kind)

    # -- what makes them of others

    def _comparable(self, depth: int) -> tuple[ExpressionCase, Callable[[], ExpressionCase]]:
        """Return an expression, and what draws others that may stand beside it."""
        kind = self._chance.choice((*NUMBERS, *NUMBERS, "text", *TIMES, "bool"))
        kinds: Sequence[str] = NUMBERS if kind in NUMBERS else (kind,)
        if self._chance.random() < 0.03:
            kinds = KINDS
        first = self.of(kind, depth - 1)
        return first, lambda: self.of(self._chance.choice(kinds), depth - 1)

    def _compared(self, kind: str, depth: int) -> ExpressionCase:
        chance = self._chance
        left, draw = self._comparable(depth)
        right = draw()
        match chance.randrange(8):
            case 0:
                others = [draw() for _ in range(chance.randint(1, 3))]
                word = chance.choice(("IN", "NOT IN"))
                ours = ", ".join(each.text for each in others)
                spark = ", ".join(each.spark for each in others)
                return ExpressionCase(
                    f"({left.text} {word} ({ours}))", f"({left.spark} {word} ({spark}))", "bool"
                )
            case 1:
                third = draw()
                word = chance.choice(("BETWEEN", "NOT BETWEEN"))
                return ExpressionCase(
                    f"({left.text} {word} {right.text} AND {third.text})",
                    f"({left.spark} {word} {right.spark} AND {third.spark})",
                    "bool",
                )
            case 2:
                word = chance.choice(("IS DISTINCT FROM", "IS NOT DISTINCT FROM", "<=>"))
            case _:
                word = chance.choice(("=", "<>", "<", "<=", ">", ">="))
        return self._binary(word, left, right, "bool")

    @staticmethod
    def _binary(
        sign: str, left: ExpressionCase, right: ExpressionCase, kind: str
    ) -> ExpressionCase:
        return ExpressionCase(
            f"({left.text} {sign} {right.text})", f"({left.spark} {sign} {right.spark})", kind
        )

    @staticmethod
    def _called(
        name: str, arguments: Sequence[ExpressionCase], kind: str, *, spark: str | None = None
    ) -> ExpressionCase:
        ours = ", ".join(each.text for each in arguments)
        theirs = ", ".join(each.spark for each in arguments)
        return ExpressionCase(f"{name}({ours})", f"{spark or name}({theirs})", kind)

    def _logic(self, kind: str, depth: int) -> ExpressionCase:
        left = self.of("bool", depth - 1)
        if self._chance.random() < 0.2:
            return ExpressionCase(f"(NOT {left.text})", f"(NOT {left.spark})", "bool")
        word = self._chance.choice(("AND", "OR"))
        return self._binary(word, left, self.of("bool", depth - 1), "bool")

    def _tested(self, kind: str, depth: int) -> ExpressionCase:
        word = self._chance.choice(("NULL", "NOT NULL", "TRUE", "NOT TRUE", "FALSE", "isnan"))
        if word == "isnan":
            number = self.of(self._chance.choice(("double", "float", "whole")), depth - 1)
            return self._called("isnan", [number], "bool")
        of = self.of("bool" if "NULL" not in word else self._chance.choice(KINDS), depth - 1)
        return ExpressionCase(f"({of.text} IS {word})", f"({of.spark} IS {word})", "bool")

    def _matched(self, kind: str, depth: int) -> ExpressionCase:
        text = self.of("text", depth - 1)
        if self._chance.random() < 0.4:
            name = self._chance.choice(("starts_with", "ends_with", "contains"))
            part = quoted(
                self._chance.choice(("", "a", "1", " ", "%", "\u00df", "-", "\U0001f600")),
                self._chance.choice(QUOTES),
            )
            return self._called(name, [text, part], "bool", spark=name.replace("_", ""))
        pieces = (
            "%",
            "%",
            "_",
            "a",
            "1",
            "-",
            ".",
            "*",
            "(",
            "\\%",
            "\\_",
            "\\\\",
            "\\a",
            "\u00df",
        )
        pattern = "".join(self._chance.choice(pieces) for _ in range(self._chance.randint(0, 4)))
        if self._chance.random() < 0.05:
            pattern += "\\"
        like = quoted(pattern, self._chance.choice(QUOTES))
        return self._binary(self._chance.choice(("LIKE", "NOT LIKE")), text, like, "bool")

    def _operand(self, kind: str, depth: int) -> ExpressionCase:
        """Return a number for a result of a kind: of this kind, or of one that becomes it."""
        narrower = {"decimal": ("decimal", "decimal", "whole"), "double": NUMBERS}.get(
            kind, (kind,)
        )
        return as_bigint(self.of(self._chance.choice((kind, *narrower)), depth - 1))

    def _arithmetic(self, kind: str, depth: int) -> ExpressionCase:
        left, right = self._operand(kind, depth), self._operand(kind, depth)
        match self._chance.randrange(8):
            case 0:
                left = in_34_digits(left)
                return ExpressionCase(f"(- {left.text})", f"(- {left.spark})", left.kind)
            case 1:
                return self._called("abs", [in_34_digits(left)], left.kind)
        found = widest(left, right)
        signs = ("+", "-", "*", "%", "DIV") if found == "whole" else ("+", "-", "*")
        return self._binary(self._chance.choice(signs), left, right, found)

    def _divided(self, kind: str, depth: int) -> ExpressionCase:
        kinds = ("whole", "double", "float", "double", "decimal")
        left, right = (self.of(self._chance.choice(kinds), depth - 1) for _ in range(2))
        return self._binary("/", left, right, "double")

    def _one_number(self, kind: str, depth: int) -> ExpressionCase:
        if kind == "double" and self._chance.random() < 0.3:
            return self._called("sqrt", [self.of(self._chance.choice(NUMBERS), depth - 1)], kind)
        number = as_bigint(self.of(kind, depth - 1))
        is_float = number.kind in ("double", "float")
        if self._chance.random() < 0.2:
            if is_float:
                return self._called("sign", [number], "double")
            return to_whole("sign", number)
        if is_float:
            number = replace(number, spark=number.spark + FEWEST_DIGITS)
        places = self._chance.choice((None, 0, 1, 2, 3, 6, -1, -2, 15, 20, 40, -40))
        more = [] if places is None else [ExpressionCase(str(places), str(places), "whole")]
        return self._called("round", [number, *more], number.kind)

    def _to_whole(self, kind: str, depth: int) -> ExpressionCase:
        number = self.of(self._chance.choice(NUMBERS), depth - 1)
        if number.kind == "whole" and self._chance.random() < 0.5:
            places = self._chance.choice((0, 1, -1, -2, -18))
            return ExpressionCase(
                f"round({number.text}, {places})",
                f"round({as_bigint(number).spark}, {places})",
                "whole",
            )
        names = (
            ("ceil", "floor") if number.kind in ("double", "float") else ("ceil", "floor", "sign")
        )
        return to_whole(self._chance.choice(names), number)

    def _measured(self, kind: str, depth: int) -> ExpressionCase:
        if self._chance.random() < 0.4:
            return self._called("length", [self.of("text", depth - 1)], "whole")
        time = self.of(self._chance.choice(TIMES), depth - 1)
        return self._called(self._chance.choice(("year", "month", "day")), [time], "whole")

    def _worded(self, kind: str, depth: int) -> ExpressionCase:
        text = self.of("text", depth - 1)
        match self._chance.randrange(4):
            case 0:
                return self._binary("||", text, self.of("text", depth - 1), "text")
            case 1:
                first = self._chance.choice((1, 1, 2, 3, 10, 2147483647))
                length = self._chance.choice((None, 0, 1, 2, -1, 5, 2147483647))
                numbers = [each for each in (first, length) if each is not None]
                return self._called(
                    "substring",
                    [text, *(ExpressionCase(str(n), str(n), "whole") for n in numbers)],
                    "text",
                )
            case _:
                name = self._chance.choice(("upper", "lower", "trim"))
                return self._called(name, [text], "text")

    def _choice(self, kind: str, depth: int) -> ExpressionCase:
        chance = self._chance
        kinds = NUMBERS if kind in NUMBERS and chance.random() < 0.3 else (kind,)
        values = [self.of(chance.choice(kinds), depth - 1) for _ in range(chance.randint(2, 3))]
        name = chance.choice(("CASE", "CASE", "coalesce", "nullif", "greatest", "least"))
        found = widest(*values) if kind in NUMBERS else kind
        if name == "nullif":
            return self._called(name, values[:2], values[0].kind)
        if name != "CASE":
            return self._called(name, values, found)
        conditions = [self.of("bool", depth - 1) for _ in values[1:]]
        ours = " ".join(
            f"WHEN {c.text} THEN {v.text}" for c, v in zip(conditions, values, strict=False)
        )
        spark = " ".join(
            f"WHEN {c.spark} THEN {v.spark}" for c, v in zip(conditions, values, strict=False)
        )
        last = values[-1]
        if chance.random() < 0.2:
            return ExpressionCase(f"CASE {ours} END", f"CASE {spark} END", found)
        return ExpressionCase(
            f"CASE {ours} ELSE {last.text} END", f"CASE {spark} ELSE {last.spark} END", found
        )

    def _cast(self, kind: str, depth: int) -> ExpressionCase:
        chance = self._chance
        of = self.any(depth - 1)
        if of.text == "NULL":
            of = ExpressionCase("NULL", "NULL", of.kind)
        if kind == "decimal":
            precision, scale = random_digits(chance)
            target = f"DECIMAL({precision}, {scale})"
        else:
            target = chance.choice(TARGETS[kind])
        return cast_to(of, kind, target)
