"""The text form of the cases: all are there, and each step has a result."""

from __future__ import annotations

from tests.support.view_cases import CASES


def test_all_cases_are_there_and_each_step_or_micro_batch_has_a_result() -> None:
    assert [case.number for case in CASES] == list(range(1, 48))
    for case in CASES:
        for epochs, given in zip(case.batches, case.given, strict=True):
            assert len(given) in (1, len(epochs)), case.id
