"""The SQL expression parser (`parse_sql`); anything outside its grammar is refused by name.

Names and texts are as in Spark: names bare or in backticks, texts in single or double quotes,
keywords in any case.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from spark_upsert.errors import PlanError, did_you_mean

TEXT_MAX = 10_000
"""Maximum characters per expression; a longer, generated expression should be a join."""

DEPTH_MAX = 50
"""Maximum bracket nesting, because the parser is recursive."""

HEIGHT_MAX = 200
"""Maximum tree height: room for a hundred terms joined by OR, within the evaluation's stack."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal value."""

    value: bool | int | float | str | Decimal | datetime.date | datetime.datetime | None
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column, or a nested field: names from the outside in."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or function call, by upper-case name."""

    name: str
    arguments: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """The value for the first true condition, else ``otherwise``."""

    branches: tuple[tuple[Tree, Tree], ...]
    otherwise: Tree


@dataclass(frozen=True, slots=True)
class Cast:
    """A value cast to another type."""

    argument: Tree
    type: pa.DataType


Tree = Literal | ColumnName | Call | Case | Cast

NULL = Literal(None, pa.null())

TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
"""Types by name; DECIMAL(precision, scale) is parsed separately."""

FUNCTIONS: dict[str, tuple[int, int]] = {
    "ABS": (1, 1),
    "CEIL": (1, 1),
    "COALESCE": (1, 100),
    "CONCAT": (1, 100),
    "CONTAINS": (2, 2),
    "DAY": (1, 1),
    "ENDS_WITH": (2, 2),
    "FLOOR": (1, 1),
    "GREATEST": (2, 100),
    "ISNAN": (1, 1),
    "LEAST": (2, 100),
    "LENGTH": (1, 1),
    "LOWER": (1, 1),
    "MONTH": (1, 1),
    "NULLIF": (2, 2),
    "ROUND": (1, 2),
    "SIGN": (1, 1),
    "SQRT": (1, 1),
    "STARTS_WITH": (2, 2),
    "SUBSTRING": (2, 3),
    "TRIM": (1, 1),
    "UPPER": (1, 1),
    "YEAR": (1, 1),
}
"""Minimum and maximum argument counts by function."""

AGGREGATES = frozenset(
    {"COUNT", "SUM", "MIN", "MAX", "AVG", "FIRST", "LAST", "COLLECT_LIST", "COLLECT_SET", "STDDEV"}
)
IMPURE = frozenset(
    {
        *("RAND", "RANDN", "RANDOM", "UUID", "NOW", "CURRENT_DATE", "CURRENT_TIMESTAMP"),
        *("CURRENT_TIME", "LOCALTIMESTAMP", "CURRENT_USER", "MONOTONICALLY_INCREASING_ID"),
    }
)
"""Functions with a different value at each call; without brackets the names are columns."""

WINDOWED = frozenset({"ROW_NUMBER", "RANK", "DENSE_RANK", "LAG", "LEAD", "NTILE"})
_REFUSED = {
    "SELECT": "a subquery",
    "EXISTS": "a subquery",
    "OVER": "a window",
    "INTERVAL": "an interval",
    "RLIKE": "RLIKE",
    "ILIKE": "ILIKE",
    "SIMILAR": "SIMILAR TO",
    "ESCAPE": "ESCAPE",
    "AS": "a name given by AS",
    "COLLATE": "COLLATE",
    "TRY_CAST": "TRY_CAST",
    "EXTRACT": "EXTRACT",
}
_WORDS = frozenset(
    {
        *("AND", "OR", "NOT", "IS", "NULL", "TRUE", "FALSE", "IN", "BETWEEN", "LIKE", "DISTINCT"),
        *("FROM", "CASE", "WHEN", "THEN", "ELSE", "END", "CAST", "DIV"),
    }
)

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | (?P<quoted>`(?:[^`]|``)+`)
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=>|<>|!=|<=|>=|\|\||[-+*/%=<>(),.])
    )""",
    re.VERBOSE,
)

_INT64_END = 1 << 63

_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}(?::[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?"
_MOMENTS = {
    "DATE": (datetime.date, re.compile(_DAY)),
    "TIMESTAMP": (
        datetime.datetime,
        re.compile(rf"{_DAY}(?:[ T]{_CLOCK}(?:Z|[+-][0-9]{{2}}:[0-9]{{2}})?)?"),
    ),
}
"""Python class and text pattern by literal keyword."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def upper(self) -> str:
        """The keyword or sign in upper case; empty for other tokens."""
        return self.text.upper() if self.kind in ("word", "sign") else ""


def parse_sql(text: str) -> Tree:
    """Parse an expression::

        or         and (OR and)*
        and        not (AND not)*
        not        NOT not | predicate
        predicate  sum [= <> != < <= > >= <=> sum | IS [NOT] NULL | IS [NOT] TRUE | IS [NOT] FALSE
                   | IS [NOT] DISTINCT FROM sum | [NOT] IN (or, ...) | [NOT] BETWEEN sum AND sum
                   | [NOT] LIKE text]
        sum        product (+ - || product)*
        product    sign (* / % DIV sign)*
        sign       - sign | + sign | value
        value      number | text | TRUE | FALSE | NULL | DATE text | TIMESTAMP text | (or)
                   | CASE [or] WHEN or THEN or ... [ELSE or] END | CAST(or AS type)
                   | function(or, ...) | column(.field)*

    Keywords match in any case.
    """
    if len(text) > TEXT_MAX:
        raise PlanError(
            f"an expression has at most {TEXT_MAX} characters, this one has {len(text)}.",
            hint="join with a table of the values.",
        )
    parser = _Parser(text)
    tree = parser.any()
    parser.expect_end()
    if _height(tree) > HEIGHT_MAX:
        raise PlanError(
            f"an expression has at most {HEIGHT_MAX} operators one upon the other.",
            hint="compute a part of it in a projection below, or use IN.",
        )
    return tree


def children(tree: Tree) -> tuple[Tree, ...]:
    """Return a tree's direct children."""
    match tree:
        case Call(arguments=arguments):
            return arguments
        case Case(branches=branches, otherwise=otherwise):
            return (*(child for branch in branches for child in branch), otherwise)
        case Cast(argument=argument):
            return (argument,)
        case _:
            return ()


def not_row_function_error(text: str, name: str) -> PlanError:
    """Return the error for a nondeterministic function or a window function."""
    return PlanError(
        f"'{text}': {name} is not a function of one row.",
        hint="store such values in a column, and read that; a column of this name is read without "
        "brackets.",
    )


def double_quoted(text: str) -> list[str]:
    """Return the double-quoted texts; empty if the expression has an invalid token."""
    return [_unquoted(token.text) for token in _double_quoted(text)]


def replace_quotes(text: str, quote: str) -> str:
    """Replace an expression's double quotes by another quote."""
    pieces, end = [], 0
    for token in _double_quoted(text):
        content = _unquoted(token.text).replace(quote, quote * 2)
        pieces += [text[end : token.at], f"{quote}{content}{quote}"]
        end = token.at + len(token.text)
    return "".join([*pieces, text[end:]])


def _double_quoted(text: str) -> list[_Token]:
    if '"' not in text:
        return []
    try:
        return [token for token in _tokens(text) if token.text.startswith('"')]
    except PlanError:
        return []


def _unquoted(text: str) -> str:
    """Remove the quotes from a token, and unescape doubled quotes."""
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def _height(tree: Tree) -> int:
    height, level = 0, [tree]
    while level:
        height, level = height + 1, [child for above in level for child in children(above)]
    return height


def _tokens(text: str) -> list[_Token]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise PlanError(
                f"'{text}': {text[start]!r} at character {start + 1} begins nothing that is known.",
                hint="put texts between single quotes, and odd names between backticks.",
            )
        tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
        at = match.end()
    return [*tokens, _Token("end", "", len(text))]


class _Parser:
    """A recursive-descent parser for one expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._index = 0
        self._depth = 0

    # -- tokens

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _take(self) -> _Token:
        token = self._next
        self._index += 1
        return token

    def _accept(self, *words: str) -> str | None:
        """Consume the next tokens if they are these words; return the first word, else None."""
        following = [token.upper for token in self._tokens[self._index : self._index + len(words)]]
        if following != list(words):
            return None
        self._index += len(words)
        return words[0]

    def _accept_one_of(self, *words: str) -> str | None:
        return self._take().upper if self._next.upper in words else None

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._unexpected(f"expected {word}")

    def expect_end(self) -> None:
        """Raise `PlanError` if tokens remain."""
        if self._next.kind != "end":
            raise self._unexpected("expected the end")

    def _unexpected(self, expected: str) -> PlanError:
        token = self._next
        refused = _REFUSED.get(token.upper)
        if refused:
            return PlanError(
                f"'{self._text}': {refused} is not supported (character {token.at + 1}).",
                hint="docs/tasks.md lists what expressions may hold.",
            )
        shown_token = f"'{token.text}'" if token.text else "the end"
        return PlanError(
            f"'{self._text}': {expected}, found {shown_token} at character {token.at + 1}.",
            hint="docs/tasks.md lists what expressions may hold.",
        )

    # -- the grammar, rule by rule

    def any(self) -> Tree:
        """Parse ``or``."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise PlanError(
                f"an expression has brackets within brackets at most {DEPTH_MAX} deep.",
                hint="compute a part of it in a projection below.",
            )
        tree = self._left(self._all, "OR")
        self._depth -= 1
        return tree

    def _left(self, below: Callable[[], Tree], *signs: str) -> Tree:
        tree = below()
        while sign := self._accept_one_of(*signs):
            tree = Call(sign, (tree, below()))
        return tree

    def _all(self) -> Tree:
        return self._left(self._not, "AND")

    def _not(self) -> Tree:
        count = 0
        while self._accept("NOT"):
            count += 1
        tree = self._predicate()
        return Call("NOT", (tree,)) if count % 2 else tree

    def _predicate(self) -> Tree:
        left = self._sum()
        if sign := self._accept_one_of("=", "<>", "!=", "<", "<=", ">", ">=", "<=>"):
            return Call("<>" if sign == "!=" else sign, (left, self._sum()))
        if self._accept("IS"):
            return self._is(left)
        is_not = self._accept("NOT") is not None
        if self._accept("IN"):
            several = self._list()
            if not several:
                raise self._unexpected("expected a value in the list of IN")
            tree: Tree = Call("IN", (left, *several))
        elif self._accept("BETWEEN"):
            lower = self._sum()
            self._expect("AND")
            tree = Call("AND", (Call(">=", (left, lower)), Call("<=", (left, self._sum()))))
        elif self._accept("LIKE"):
            tree = Call("LIKE", (left, self._sum()))
        elif is_not:
            raise self._unexpected("expected IN, BETWEEN or LIKE behind NOT")
        else:
            return left
        return Call("NOT", (tree,)) if is_not else tree

    def _is(self, left: Tree) -> Tree:
        is_not = self._accept("NOT") is not None
        if self._accept("DISTINCT"):
            self._expect("FROM")
            tree = Call("<=>", (left, self._sum()))
            return tree if is_not else Call("NOT", (tree,))
        word = self._accept_one_of("NULL", "TRUE", "FALSE")
        if word is None:
            raise self._unexpected("expected NULL, TRUE, FALSE or DISTINCT FROM")
        tree = Call(f"IS {word}", (left,))
        return Call("NOT", (tree,)) if is_not else tree

    def _sum(self) -> Tree:
        return self._left(self._product, "+", "-", "||")

    def _product(self) -> Tree:
        return self._left(self._signed, "*", "/", "%", "DIV")

    def _signed(self) -> Tree:
        is_negative = False
        while sign := self._accept_one_of("-", "+"):
            is_negative ^= sign == "-"
        if is_negative and self._next.kind == "number":
            return self._number(-1)
        tree = self._value()
        return Call("-", (tree,)) if is_negative else tree

    def _value(self) -> Tree:
        token = self._next
        match token.kind:
            case "number":
                return self._number(1)
            case "text":
                return Literal(self._string(), pa.string())
            case "quoted":
                return self._column()
            case "sign" if self._accept("("):
                tree = self.any()
                self._expect(")")
                return tree
            case "word":
                return self._word(token)
        raise self._unexpected("expected a value")

    def _word(self, token: _Token) -> Tree:
        following = self._tokens[self._index + 1]
        match token.upper:
            case "NULL":
                self._take()
                return NULL
            case "TRUE" | "FALSE":
                return Literal(self._take().upper == "TRUE", pa.bool_())
            case "DATE" | "TIMESTAMP" if following.kind == "text":
                return self._moment(self._take().upper)
            case "CASE":
                return self._case()
            case "CAST":
                return self._cast()
        if token.upper in _WORDS or token.upper in _REFUSED:
            raise self._unexpected("expected a value")
        return self._call() if following.text == "(" else self._column()

    def _number(self, sign: int) -> Literal:
        text = self._take().text
        if "e" in text.lower():
            return self._double(sign, text)
        integer = sign * int(text) if text.isdigit() else _INT64_END
        if -_INT64_END <= integer < _INT64_END:
            return Literal(integer, pa.int64())
        before, _, fraction = text.partition(".")
        precision = max(len(before.lstrip("0")) + len(fraction), 1)
        if precision > 38:
            raise PlanError(
                f"'{self._text}': {text} has more than 38 digits.",
                hint="write it as a DOUBLE, with an exponent: 1e40.",
            )
        # Not by arithmetic, which rounds to the 28 digits of Python's context.
        number = Decimal(f"-{text}" if sign < 0 else text)
        return Literal(number, pa.decimal128(precision, len(fraction)))

    def _double(self, sign: int, text: str) -> Literal:
        number = sign * float(text)
        if math.isinf(number):
            raise PlanError(
                f"'{self._text}': {text} is no DOUBLE, which are below 1.8e308.",
                hint="write CAST('Infinity' AS DOUBLE) for what is above all numbers.",
            )
        return Literal(number, pa.float64())

    def _string(self) -> str:
        return _unquoted(self._take().text)

    def _moment(self, word: str) -> Literal:
        cls, form = _MOMENTS[word]
        at, text = self._next.at, self._string()
        try:
            # Python reads more than SQL does: 20260131, and 2026-W05-6.
            value = cls.fromisoformat(text) if form.fullmatch(text) else None
            if isinstance(value, datetime.datetime):
                zoned = value.replace(tzinfo=value.tzinfo or datetime.UTC)
                value = zoned.astimezone(datetime.UTC)
        except (ValueError, OverflowError):
            value = None
        if value is None:
            raise PlanError(
                f"'{self._text}': '{text}' at character {at + 1} is no {word.lower()} of the years "
                f"0001 to 9999.",
                hint="write DATE '2026-01-31', or TIMESTAMP '2026-01-31 12:00:00', which is UTC.",
            )
        return Literal(value, TYPES[word])

    def _case(self) -> Tree:
        self._take()
        subject = None if self._next.upper == "WHEN" else self.any()
        branches = []
        while self._accept("WHEN"):
            condition = self.any()
            self._expect("THEN")
            is_met = condition if subject is None else Call("=", (subject, condition))
            branches.append((is_met, self.any()))
        if not branches:
            raise self._unexpected("expected WHEN")
        otherwise = self.any() if self._accept("ELSE") else NULL
        self._expect("END")
        return Case(tuple(branches), otherwise)

    def _cast(self) -> Tree:
        self._take()
        self._expect("(")
        argument = self.any()
        self._expect("AS")
        type_ = self._type()
        self._expect(")")
        return Cast(argument, type_)

    def _type(self) -> pa.DataType:
        name = self._take().text.upper()
        if name in ("DECIMAL", "NUMERIC", "DEC"):
            return self._decimal()
        if name not in TYPES:
            raise PlanError(
                f"'{self._text}': there is no type '{name}' to cast to.",
                hint=did_you_mean(name, [*TYPES, "DECIMAL"]),
            )
        return TYPES[name]

    def _decimal(self) -> pa.DataType:
        numbers = [10, 0]
        if self._accept("("):
            for index in range(2):
                if not self._next.text.isdigit():
                    raise self._unexpected("expected a number of digits")
                numbers[index] = int(self._take().text)
                if not self._accept(","):
                    break
            self._expect(")")
        precision, scale = numbers
        if not (1 <= precision <= 38 and scale <= precision):
            raise PlanError(
                f"'{self._text}': DECIMAL has 1 to 38 digits, and no more behind the point, "
                f"found ({precision}, {scale}).",
                hint="write DECIMAL(38, 2).",
            )
        return pa.decimal128(precision, scale)

    def _call(self) -> Tree:
        name = self._take().upper
        if name in AGGREGATES:
            raise PlanError(
                f"'{self._text}': {name} is of many rows, an expression is of one.",
                hint="use an aggregation.",
            )
        if name in IMPURE | WINDOWED:
            raise not_row_function_error(self._text, name)
        if name not in FUNCTIONS:
            raise PlanError(
                f"'{self._text}': there is no function {name}.", hint=did_you_mean(name, FUNCTIONS)
            )
        arguments = self._list()
        least, most = FUNCTIONS[name]
        if not least <= len(arguments) <= most:
            raise PlanError(
                f"'{self._text}': {name} takes {least}{f' to {most}' if most > least else ''} "
                f"arguments, found {len(arguments)}.",
                hint="docs/tasks.md lists the functions.",
            )
        return Call("||" if name == "CONCAT" else name, tuple(arguments))

    def _list(self) -> list[Tree]:
        self._expect("(")
        items = [] if self._next.text == ")" else [self.any()]
        while items and self._accept(","):
            items.append(self.any())
        self._expect(")")
        return items

    def _column(self) -> ColumnName:
        path = [self._name()]
        while self._accept("."):
            path.append(self._name())
        return ColumnName(tuple(path))

    def _name(self) -> str:
        token = self._next
        if token.kind == "quoted":
            return _unquoted(self._take().text)
        if token.kind != "word":
            raise self._unexpected("expected a name")
        return self._take().text
