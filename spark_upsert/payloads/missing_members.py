"""Members missing from JSON objects (`find_missing`; option ``missingFields``).

Decoded columns have null both for a missing member and for a member with the value null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask
from spark_upsert.payloads.placeholders import parse_object

_FLAT = r"(?s)^\s*(?P<object>\{[^{}]*\})\s*$"
"""A payload that is one object without other objects inside."""

_MEMBER_OBJECT = r'(?s)"%s"\s*:\s*(?P<object>\{[^{}]*\})'
"""A member that is such an object."""

_ESCAPE = r"\\u00[0-7]"
"""An escape that could hide an ASCII name."""

_PLAIN = re.compile(r"[A-Za-z0-9_]+")
"""Names that a writer does not escape."""


def find_missing(
    payloads: pa.Array, path: tuple[str, ...], columns: Mapping[str, pa.Array], has_object: Mask
) -> dict[str, Mask]:
    """Return rows whose object lacks a member, by member.

    Parameters
    ----------
    payloads : pyarrow.Array
        n JSON payloads, as binary.
    path : tuple of str
        Path to the object, at most one name; empty for the payload itself.
    columns : mapping of str to pyarrow.Array
        The decoded members. Only a null can be missing.
    has_object : Mask
        The rows with a valid payload and an object at ``path``. Others lack no member.

    Notes
    -----
    A Python loop over rows with an explicit null in a payload with nested objects: some 30 us per
    kB.
    """
    objects = _flat_objects(payloads, path)
    has_escape = _mask(pc.match_substring_regex(payloads, _ESCAPE))
    is_flat = _mask(objects.is_valid()) & ~has_escape
    candidates = {n: _mask(column.is_null()) & has_object for n, column in columns.items()}
    missing, doubtful = {}, np.zeros(len(payloads), dtype=np.bool_)
    for name, is_null in candidates.items():
        if _PLAIN.fullmatch(name) is None:
            missing[name] = np.zeros(len(payloads), dtype=np.bool_)
            doubtful |= is_null
            continue
        has_name = has_escape.copy()
        for where, texts, pattern in (
            (is_null & is_flat, objects, rf'[{{,]\s*"{name}"\s*:'),
            (is_null & ~is_flat, payloads, rf'"{name}"\s*:\s*null'),
        ):
            if where.any():
                rows = np.flatnonzero(where)
                has_name[rows] |= _mask(pc.match_substring_regex(texts.take(rows), pattern))
        missing[name] = is_null & ~has_name
        doubtful |= is_null & ~is_flat & has_name
    for row in np.flatnonzero(doubtful).tolist():
        names = _names_in(payloads[row].as_py(), path)
        for name, is_null in candidates.items():
            missing[name][row] = is_null[row] and names is not None and name not in names
    return {name: where for name, where in missing.items() if where.any()}


def combine_masks(one: Mapping[str, Mask], other: Mapping[str, Mask]) -> dict[str, Mask]:
    """Return masks by name that are true where one of two is."""
    combined = dict(one)
    for name, where in other.items():
        combined[name] = combined[name] | where if name in combined else where
    return combined


def null_faults(
    columns: Mapping[str, pa.Array],
    required: Iterable[str],
    has_object: Mask,
    unsent: Mapping[str, Mask],
) -> Iterator[tuple[str, Mask]]:
    """Yield a reason and its rows for each NOT NULL column with a null that the source sent."""
    for name in required:
        is_null = _mask(columns[name].is_null()) & has_object
        yield (
            f"'{name}' is null, and declared NOT NULL",
            is_null & ~unsent[name] if name in unsent else is_null,
        )


def _flat_objects(payloads: pa.Array, path: tuple[str, ...]) -> pa.Array:
    """Return the objects at a path as text, null where they are not certain."""
    pattern = _MEMBER_OBJECT % path if path else _FLAT
    objects = pc.struct_field(pc.extract_regex(payloads, pattern), [0])
    if not path:
        return objects
    return pc.if_else(pc.equal(pc.count_substring(payloads, f'"{path[0]}"'), 1), objects, None)


def _names_in(payload: bytes, path: tuple[str, ...]) -> set[str] | None:
    """Return the members of an object; None for an invalid payload, or without the object."""
    parsed = parse_object(payload, path)
    return None if parsed is None else {name for name, _ in parsed.row}


def _mask(values: pa.Array) -> Mask:
    return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)
