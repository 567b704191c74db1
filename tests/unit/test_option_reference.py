"""The page of options says what the code says."""

from __future__ import annotations

from tools.option_reference import TARGET, reference


def test_the_page_of_options_is_up_to_date() -> None:
    assert TARGET.read_text() == reference(), "run: make pages"
