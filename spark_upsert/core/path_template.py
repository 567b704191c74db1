"""Path templates for routed writes, ``/lake/{source.db}.{table}``, and their folders.

Invariant: ``values(folder(v)) == v``; no folder is in another one or outside the root
(docs/adr/0042).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from spark_upsert.errors import DataError, OptionError, is_url, require_plain, setting

SEGMENT_BYTES_MAX = 255
"""Maximum bytes in a folder name on ext4, XFS, APFS and NTFS."""

_KEPT = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_HIDDEN = ("_", ".")
_LITERAL = re.compile(r"[A-Za-z0-9_.=+@,{}-]*")
"""Permitted literal text: without a special meaning in paths, URLs, globs or file systems."""
_PIECE = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]|/|[^{}/]+")
_ESCAPE = re.compile(r"=([0-9A-F]{2})")
_EXAMPLE = "write columns in braces, as in '/lake/{topic}' or '/lake/{source.db}/{source.table}'"


def is_routed(path: str) -> bool:
    """Return whether a path is a template: it contains braces."""
    return "{" in path or "}" in path


@dataclass(frozen=True)
class Segment:
    """A folder name: ``literals[0] {columns[0]} literals[1] {columns[1]} ... literals[-1]``."""

    literals: tuple[str, ...]
    columns: tuple[str, ...]

    def __str__(self) -> str:
        doubled = tuple(literal.replace("{", "{{").replace("}", "}}") for literal in self.literals)
        return Segment(doubled, ()).joined([f"{{{column}}}" for column in self.columns])

    @cached_property
    def _kept_chars(self) -> str:
        """Characters that values keep, as the inside of a regular expression's class."""
        between = [_separator(literal) for literal in self.literals[1:-1]]
        return re.escape("".join(char for char in _KEPT if char not in between))

    @cached_property
    def _escaped_chars(self) -> re.Pattern[str]:
        return re.compile(f"[^{self._kept_chars}]+")

    def joined(self, texts: Sequence[str]) -> str:
        """Join literals and texts alternately."""
        following = zip(texts, self.literals[1:], strict=True)
        return self.literals[0] + "".join(text + literal for text, literal in following)

    def encode(self, values: Sequence[str]) -> str:
        """Return the name for values; raise `DataError` if it is empty, hidden or too long."""
        texts = [self._escaped_chars.sub(_escaped, value) for value in values]
        if not self.literals[0] and texts and texts[0].startswith(_HIDDEN):
            texts[0] = f"{_escape(texts[0][0])}{texts[0][1:]}"
        name = self.joined(texts)
        if not name:
            raise self._unnameable(values, "an empty folder name")
        if name.startswith(_HIDDEN):
            raise self._unnameable(
                values, f"the hidden folder name '{name}'", "a hidden folder name"
            )
        if len(name) > SEGMENT_BYTES_MAX:
            long = f"a folder name of {len(name)} bytes, and {SEGMENT_BYTES_MAX} are the most"
            raise self._unnameable(values, long)
        return name

    def pattern(self) -> str:
        """Return a regular expression for the folder names, with a group per value."""
        value = f"((?:[{self._kept_chars}]|=[0-9A-F]{{2}})*)"
        following = (value + re.escape(literal) for literal in self.literals[1:])
        return re.escape(self.literals[0]) + "".join(following)

    def _unnameable(self, values: Sequence[str], what: str, told: str = "") -> DataError:
        pairs = zip(self.columns, values, strict=True)
        described = ", ".join(f"{column}={_shown(value)}" for column, value in pairs)
        return DataError(
            f"{described} makes {what}.",
            hint="give such rows another value, or filter them out before the write. With "
            f"{setting('onTableError', 'park')} or {setting('onError', 'quarantine')} they are "
            "kept apart, and counted.",
            told=f"{', '.join(self.columns)} makes {told or what}.",
        )


@dataclass(frozen=True)
class Template:
    """A validated path with columns in braces."""

    root: str
    """Folder before the first segment with a column, absolute if local."""
    segments: tuple[Segment, ...]
    """Segments after the root."""

    @classmethod
    def parse(cls, path: str) -> Template:
        """Parse and validate a path."""
        require_plain(path)
        parts = list(_split(path, _pieces(path)))
        first = next((at for at, part in enumerate(parts) if _columns_of(part)), None)
        if first is None:
            raise _invalid(path, "names no column", hint=f"{_EXAMPLE}.")
        root = _root(path, parts[:first])
        segments = tuple(_segment(path, part) for part in parts[first:])
        _require_each_once(path, [column for segment in segments for column in segment.columns])
        return cls(root=root, segments=segments)

    def __str__(self) -> str:
        return f"{self.root.rstrip('/')}/{self.relative}"

    @cached_property
    def relative(self) -> str:
        """Path after the root, in normalized form for comparisons."""
        return "/".join(map(str, self.segments))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Column names in order; dots lead into structs."""
        return tuple(column for segment in self.segments for column in segment.columns)

    def folder(self, values: Sequence[str]) -> str:
        """Return the folder for values, one per column, relative to the root."""
        return "/".join(
            segment.encode(part)
            for segment, part in zip(self.segments, self._cut(values), strict=True)
        )

    def name(self, values: Sequence[str]) -> str:
        """Return the table's display name: the template with its unescaped values."""
        return "/".join(
            segment.joined(part)
            for segment, part in zip(self.segments, self._cut(values), strict=True)
        )

    def try_values(self, folder: str) -> tuple[str, ...] | None:
        """Return the values for a folder; None if the folder does not match the template."""
        pieces = self._pattern.fullmatch(folder)
        if pieces is None:
            return None
        try:
            values = tuple(_unescape(text) for text in pieces.groups())
            return values if self.folder(values) == folder else None
        except (UnicodeDecodeError, DataError):
            return None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("/".join(segment.pattern() for segment in self.segments))

    def _cut(self, values: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield each segment's values."""
        at = 0
        for segment in self.segments:
            yield values[at : at + len(segment.columns)]
            at += len(segment.columns)


def _escape(text: str) -> str:
    return "".join(f"={byte:02X}" for byte in text.encode())


def _escaped(found: re.Match[str]) -> str:
    return _escape(found[0])


def _unescape(text: str) -> str:
    """Return the unescaped value; raises `UnicodeDecodeError`."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1").decode()


def _shown(value: str) -> str:
    return repr(value if len(value) <= 60 else f"{value[:60]}...")


def _pieces(path: str) -> Iterator[str]:
    """Yield literal texts, ``/``, columns in braces, and doubled braces."""
    for piece in _PIECE.finditer(path.strip()):
        if piece[0] in ("{", "}"):
            raise _invalid(
                path,
                f"has a '{piece[0]}' without its counterpart at character {piece.start() + 1}",
                hint=f"{_EXAMPLE}; a brace that is meant as such is doubled: '{{{{' and '}}}}'.",
            )
        yield piece[0]


def _split(path: str, pieces: Iterator[str]) -> Iterator[list[str]]:
    """Yield the pieces of each folder name."""
    part: list[str] = []
    for piece in pieces:
        if piece == "/":
            yield part
            part = []
        else:
            part.append(piece)
    if part:  # A '/' at the end means nothing.
        yield part


def _is_column(piece: str) -> bool:
    return piece.startswith("{") and piece != "{{"


def _columns_of(part: Sequence[str]) -> list[str]:
    return [piece for piece in part if _is_column(piece)]


def _unbraced(piece: str) -> str:
    return piece[0] if piece in ("{{", "}}") else piece


def _segment(path: str, part: Sequence[str]) -> Segment:
    literals: list[str] = [""]
    columns: list[str] = []
    for piece in part:
        if _is_column(piece):
            columns.append(_column(path, piece))
            literals.append("")
        else:
            literals[-1] += _unbraced(piece)
    for literal in literals:
        if _LITERAL.fullmatch(literal) is None:
            raise _invalid(
                path,
                f"has {literal!r} among the names that hold columns, or below them",
                hint="write letters, digits and '_-.=+@,' there.",
            )
    for between, one, next_column in zip(literals[1:-1], columns, columns[1:], strict=False):
        if _separator(between) is None:
            raise _invalid(
                path,
                f"has {repr(between) if between else 'nothing'} between {{{one}}} and "
                f"{{{next_column}}}, so that their values could not be told apart",
                hint="put a '.', '-' or '_' between them, or a '/'.",
            )
    name = "".join(part)
    if not name or literals[0].startswith(_HIDDEN):
        raise _invalid(
            path,
            f"has the name {name!r} behind its root, which is empty, hidden, or leads elsewhere",
            hint="begin each name there with a column, a letter or a digit.",
        )
    return Segment(tuple(literals), tuple(columns))


def _column(path: str, piece: str) -> str:
    names = [name.strip() for name in piece[1:-1].split(".")]
    if not all(names):
        raise _invalid(
            path,
            f"has {piece!r}, which lacks the name of a column",
            hint=f"{_EXAMPLE}; dots lead into structs.",
        )
    return ".".join(names)


def _separator(literal: str) -> str | None:
    return next((char for char in literal if not char.isalnum() and char != "="), None)


def _require_each_once(path: str, columns: Sequence[str]) -> None:
    lower = [column.lower() for column in columns]
    for at, column in enumerate(columns):
        if lower[at] in lower[:at]:
            raise _invalid(path, f"names {{{column}}} twice", hint="name each column once.")


def _root(path: str, parts: Sequence[Sequence[str]]) -> str:
    """Return the path before the first segment with a column, as the driver resolves it."""
    text = "/".join("".join(_unbraced(piece) for piece in part) for part in parts)
    if not is_url(f"{text}/"):
        # A task may run in another folder than the driver: a relative path is the driver's.
        return os.path.abspath(text or "/") if parts else os.path.abspath("")
    if len(parts) == 2 and "://" in path:
        raise _invalid(
            path,
            "has a column in the name of the bucket",
            hint="write one query for each bucket, with columns in the names below it.",
        )
    return f"{text}/" if text.endswith(("/", ":")) else text


def _invalid(path: str, what: str, *, hint: str) -> OptionError:
    return OptionError(f"option 'path' is {path!r}, which {what}.", hint=hint, option="path")
