"""The text form of the cases: what it says is what tests are given."""

from __future__ import annotations

from tests.support.view_cases import CASES, Changed, Contribution, Epoch, cases


def test_all_cases_are_there_in_order() -> None:
    assert [case.number for case in CASES] == list(range(1, 48))


def test_each_step_has_a_result_or_the_micro_batch_has_one() -> None:
    for case in CASES:
        for epochs, given in zip(case.batches, case.given, strict=True):
            assert len(given) in (1, len(epochs)), case.id


def test_an_overwrite_and_its_changes_are_read() -> None:
    [case] = cases(1)
    assert case.plan == 'O.filter("x>5")'
    assert case.batches[0][3] == Epoch("O", ((1, 7, 2), (3, 7, 7)), (), overwrite=True)
    assert case.given[0][2] == (Changed((1, 7, 6), (1, 7, 8)),)


def test_times_micro_batches_and_deletes_are_read() -> None:
    [case] = cases(43)
    assert [len(batch) for batch in case.batches] == [1, 2]
    assert case.batches[1][0] == Epoch("C", ((7, "a"),), (), time=3)
    assert cases(31)[0].batches[0][1] == Epoch("O", (), ((1,), (2,)))
    assert cases(31)[0].batches[0][0].puts == ((1, 7, 5), (2, 7, -5))


def test_contributions_are_read() -> None:
    assert cases(34)[0].given[0][1] == (
        Contribution((7,), 1, 3, (("n", -1),)),
        Contribution((7,), 1, 4, (("n", 1),)),
    )
    assert cases(33)[0].given[0][2][0] == Contribution(
        (7,), 0, None, (("n", -1), ("c_x", -1), ("s_x", -12))
    )


def test_a_refusal_is_read() -> None:
    assert cases(45)[0].refused == "needs an index of F on 'g'"
