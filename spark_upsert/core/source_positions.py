"""Database log positions as text, in Debezium's ``source`` block, and their order.

Only texts with a known order may be order keys: binlog names and SQL Server LSNs; others are
refused (docs/adr/0016).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import ContentionError, DataError, OptionError, setting

BINLOG_NAMES = "binlogNames"
"""Property with the binlogs' base names, comma separated, oldest first."""

_DIGITS = 6
_FILE = re.compile(r"(?s)(.+)\.(:*)([0-9]+)")
_LSN = "^([0-9a-f]{8}:[0-9a-f]{8}:[0-9a-f]{4})?$"
"""Pattern for an LSN; empty for a row that a snapshot read without an LSN."""

_FLATTENED = "__"
_TEXTS = frozenset(
    {
        *("file", "gtid", "sequence", "scn", "commit_scn", "start_scn", "lcr_position", "rs_id"),
        *("txid", "commit_lsn", "change_lsn", "begin_lsn", "vgtid", "server_transaction_id"),
    }
)
"""Text fields that flattened events contain under names such as ``__scn``."""

_INSTEAD = {
    "gtid": "source.file,source.pos,source.row",
    "sequence": "source.lsn",
    "change_lsn": "source.commit_lsn,offset",
}
"""Recommended order for a field; for others, the topic's order."""


class LogPosition(Enum):
    """Meaning of a text in the ``source`` block as an order key."""

    BINLOG = "the name of a binlog such as 'mysql-bin.000007'"
    LSN = "an LSN such as '00000027:00000758:0005'"
    UNORDERED = "text whose order is not that of the log"


def position_of(field: pa.Field) -> LogPosition | None:
    """Return an order column's log position; None if its values need no conversion."""
    name = _source_field(field.name)
    if name is None or not pa.types.is_string(field.type):
        return None
    if name == "file":
        return LogPosition.BINLOG
    return LogPosition.LSN if name in ("commit_lsn", "change_lsn") else LogPosition.UNORDERED


def _source_field(name: str) -> str | None:
    """Return a column's field in a ``source`` or ``transaction`` block; None for other columns."""
    *above, last = name.lower().split(".")
    if above and above[-1] in ("source", "transaction"):
        return last
    if not last.startswith(_FLATTENED):
        return None
    field = last.removeprefix(_FLATTENED).removeprefix("source_")
    return field if field in _TEXTS else None


def require_ordered(fields: Iterable[pa.Field], *, is_new: bool) -> None:
    """Refuse order columns whose text order differs from the log order.

    ``change_lsn`` is refused for new tables only: a later command in a transaction may have a
    smaller one.
    """
    for field in fields:
        position, name = position_of(field), _source_field(field.name) or ""
        if position is LogPosition.UNORDERED or (position and is_new and name == "change_lsn"):
            instead = _INSTEAD.get(name)
            advice = "" if instead is None else f"give {setting('sequenceBy', instead)}, or "
            raise OptionError(
                f"'{field.name}' cannot order changes: it is {LogPosition.UNORDERED.value}.",
                hint=f"{advice}leave 'sequenceBy' out, which orders by the offsets of the topic. "
                "The order of a table is fixed: write into a new one.",
                option="sequenceBy",
            )


def order_keys(
    fields: Sequence[pa.Field], columns: Sequence[pa.Array], names: Sequence[str]
) -> tuple[list[pa.Array], pa.Array | None]:
    """Return order columns in which positions compare as in the log, and error reasons.

    Other columns stay unchanged. A reason is null for a valid row; None if all rows are valid.
    """
    keys, reasons = [], None
    for field, column in zip(fields, columns, strict=True):
        match position_of(field):
            case LogPosition.BINLOG as position:
                key = _file_keys(column, names)
            case LogPosition.LSN as position:
                key = pc.if_else(pc.match_substring_regex(column, _LSN), column, None)
            case _:
                keys.append(column)
                continue
        keys.append(key)
        is_bad = pc.and_(key.is_null(), column.is_valid())
        if pc.any(is_bad).as_py():
            why = pc.binary_join_element_wise(
                f"'{field.name}' is '", column, f"', expected {position.value}", ""
            )
            why = pc.if_else(is_bad, why, pa.scalar(None, pa.string()))
            reasons = why if reasons is None else pc.coalesce(reasons, why)
    return keys, reasons


def _file_keys(column: pa.Array, names: Sequence[str]) -> pa.Array:
    """Return order keys for binlog names, each distinct name once."""
    texts = column.dictionary_encode()
    keys = [_file_key(text, names) for text in texts.dictionary.to_pylist()]
    return pa.array(keys, pa.string()).take(texts.indices)


def _file_key(text: str, names: Sequence[str]) -> str | None:
    """Return a binlog name's order key; None if the name is invalid.

    ``mysql-bin.1000000`` becomes ``mysql-bin.:1000000``, with a ``:`` per digit beyond six.

    Source: MySQL's ``log.cc`` and Debezium's ``BinlogSourceInfo``.
    """
    parts = _FILE.fullmatch(text)
    if parts is None:
        return None
    base, beyond, digits = parts.groups()
    digits = digits.lstrip("0").rjust(_DIGITS, "0")
    if beyond and len(beyond) != len(digits) - _DIGITS:
        return None
    log_bases = log_names(names)
    if base in log_bases.values():
        log = base
    elif base in log_bases or not log_bases:
        log = log_bases.get(base, base)
    else:
        raise unknown_log(base, names)
    return f"{log}.{':' * (len(digits) - _DIGITS)}{digits}"


def log_names(names: Sequence[str]) -> dict[str, str]:
    """Return the log name for each base name.

    A server counts from 1 again under a new base name, so a later name becomes the first name with
    its index, as in ``mysql-bin.~01``. The first base name is its own log name.
    """
    return {name: name if i == 0 else f"{names[0]}.~{i:02}" for i, name in enumerate(names)}


def parse_binlog_names(text: str) -> tuple[str, ...]:
    """Parse binlog base names, oldest first."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names) or len(names) > _NAMES_MAX:
        raise OptionError.invalid(
            BINLOG_NAMES, text, f"up to {_NAMES_MAX} different base names, such as mysql-bin,binlog"
        )
    return names


_NAMES_MAX = 99
"""Maximum base names: a log name has two digits for the index."""


def logs_in(columns: Sequence[pa.Array], fields: Sequence[pa.Field]) -> frozenset[str]:
    """Return the log names in order keys."""
    return frozenset(
        log
        for field, column in zip(fields, columns, strict=True)
        if position_of(field) is LogPosition.BINLOG
        for text in pc.unique(column).to_pylist()
        if text and (log := text.rpartition(".")[0])
    )


def with_logs(properties: Mapping[str, str], logs: frozenset[str]) -> dict[str, str] | None:
    """Return a table's properties after an epoch with some logs; None if unchanged."""
    if not logs:
        return None
    text = properties.get(BINLOG_NAMES)
    if text is not None:
        names = parse_binlog_names(text)
        log_bases = log_names(names)
        for log in sorted(logs - set(log_bases.values())):
            if log in log_bases:
                raise ContentionError(
                    f"the table got {BINLOG_NAMES}={text} while rows of '{log}' were written. "
                    "Nothing was committed.",
                    hint="write it again; a query that is restarted does.",
                )
            raise unknown_log(log, names)
        return None
    if len(logs) > 1:
        raise DataError(
            f"the events name binlogs with {len(logs)} base names ({', '.join(sorted(logs))}), "
            "each of which begins with number 1. Nothing was committed.",
            hint=f"give '{BINLOG_NAMES}' with these names, comma separated, in the order in which "
            "the server used them; if they are names of different servers, leave 'sequenceBy' out.",
        )
    return {**properties, BINLOG_NAMES: next(iter(logs))}


def require_extended(old: str | None, new: str | None) -> None:
    """Refuse base names that do not extend the table's: its order keys are stored."""
    if old is None or new is None:
        return
    names = parse_binlog_names(old)
    if parse_binlog_names(new)[: len(names)] != names:
        raise OptionError.invalid(
            BINLOG_NAMES,
            new,
            f"the names of the table, '{','.join(names)}', and then others",
            hint=f"give '{BINLOG_NAMES}' with the new names after '{','.join(names)}', or drop it.",
        )


def unknown_log(base: str, names: Sequence[str]) -> DataError:
    """Return the error for a binlog that the table's order does not cover."""
    log_bases = ",".join(names)
    return DataError(
        f"the events name a binlog '{base}', and the table is ordered by the binlogs "
        f"'{log_bases}'. Numbers of other binlogs begin again at 1. Nothing was committed.",
        hint=f"if the same server continues its log under this name, give "
        f"{setting(BINLOG_NAMES, f'{log_bases},{base}')}; if it is another server, write into a "
        "new table, or leave 'sequenceBy' out there.",
    )
