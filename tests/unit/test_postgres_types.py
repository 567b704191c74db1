"""PostgreSQL types as Arrow types, and odd text forms."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from spark_upsert.postgres.types import ValueType, take_slices, value_type


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (10, 2, pa.decimal128(10, 2)),
        (5, -2, pa.decimal128(7, 0)),
        (3, 5, pa.decimal128(5, 5)),
        (38, 38, pa.decimal128(38, 38)),
        (39, 0, pa.string()),
        (37, -2, pa.string()),
    ],
)
def test_a_numeric_is_a_decimal_if_38_digits_suffice(
    precision: int, scale: int, expected: pa.DataType
) -> None:
    modifier = (precision << 16 | scale & 0x7FF) + 4
    assert value_type(1700, modifier, {}).arrow == expected


def test_a_domain_has_the_type_it_is_based_on_and_an_enum_is_text() -> None:
    names = {70_001: ("", "int4"), 70_002: ("public", "mood"), 70_003: ("public", "int4")}
    types = [value_type(oid, -1, names).arrow for oid in names]
    assert types == [pa.int32(), pa.string(), pa.string()]


def test_a_type_that_nobody_described_is_text() -> None:
    assert value_type(70_001, -1, {}).arrow == pa.string()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["{1,2}", None, "{}"], [[1, 2], None, []]),
        (["[2:3]={1,NULL}"], [[1, None]]),
        (["{{1},{2}}", "{1}"], ["bad", [1]]),
        (["{1,x}", "{2}"], ["bad", [2]]),
        ([], []),
        ([None], [None]),
    ],
)
def test_arrays_of_numbers(texts: list[str | None], expected: list[object]) -> None:
    assert _read(texts, pa.list_(pa.int32())) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'{"a b","\"","\\\\",x}', ["a b", '"', r"\\", "x"]),
        (r'{NULL,"NULL",null}', [None, "NULL", "null"]),
        (r'{"{","}",",",""}', ["{", "}", ",", ""]),
        (r'{"\\",y}', ["\\", "y"]),
        ('{é,"a\nb"}', ["é", "a\nb"]),
    ],
)
def test_arrays_of_texts_between_others(text: str, expected: list[str]) -> None:
    texts = ["{a}", text, None, "{b}"]
    assert _read(texts, pa.list_(pa.string())) == [["a"], expected, None, ["b"]]


def test_bytes_in_hexadecimal_digits() -> None:
    texts = ["\\x00ff", "\\x", None, "\\x0", "\\x0g", "x"]
    assert _read(texts, pa.binary()) == [b"\x00\xff", b"", None, "bad", "bad", "bad"]


def test_truth_values() -> None:
    assert _read(["t", "f", None, "true"], pa.bool_()) == [True, False, None, "bad"]


def test_a_text_in_another_encoding_is_bad() -> None:
    latin = b"a\xe9b"
    starts, lengths = _positions([0, 0], [1, 3])
    texts = take_slices(pa.py_buffer(latin), starts, lengths)
    values, bad = ValueType("text", pa.string()).read(texts)
    assert (values.to_pylist(), bad.tolist()) == (["a", None], [False, True])


def test_slices_may_come_in_any_order_and_be_absent() -> None:
    starts, lengths = _positions([4, 0, 2, 2], [2, 1, 0, 2])
    present = np.array([True, True, True, False])
    found = take_slices(pa.py_buffer(b"abcdef"), starts, lengths, present)
    assert found.to_pylist() == ["ef", "a", "", None]


def _positions(
    starts: list[int], lengths: list[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.array(starts), np.array(lengths)


def _read(texts: list[str | None], type_: pa.DataType) -> list[object]:
    values, bad = ValueType("tested", type_).read(pa.array(texts, pa.string()))
    assert values.type == type_
    return [
        "bad" if is_bad else value
        for value, is_bad in zip(values.to_pylist(), bad.tolist(), strict=True)
    ]
