"""Each code of an error is told of: on the page of errors, and by the command."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.cli.error_codes import ENTRIES
from tools.error_reference import TARGET, classes, reference

OF_SPARK = {"STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"}


def test_the_page_of_errors_is_up_to_date() -> None:
    assert TARGET.read_text() == reference(), "run: make pages"


def test_every_code_is_told_of_and_no_other() -> None:
    assert ENTRIES.keys() - OF_SPARK == classes().keys()


@pytest.mark.parametrize("given", ["TABLE_FULL", "[TABLE_FULL]", "table-full"])
def test_the_command_explains_a_code_as_it_is_pasted(given: str) -> None:
    result = CliRunner().invoke(upsertflow, ["explain-error", given])
    assert result.exit_code == 0
    assert result.output.startswith("[TABLE_FULL] The slowest consumer")
    assert "\n\nDo: See why" in result.output
    facts = json.loads(CliRunner().invoke(upsertflow, ["explain-error", given, "--json"]).output)
    assert (facts["code"], facts["do"]) == ("TABLE_FULL", ENTRIES["TABLE_FULL"].do)


def test_a_code_that_is_unknown_is_told_with_the_nearest_one() -> None:
    result = CliRunner().invoke(upsertflow, ["explain-error", "TABLE_FUL"])
    assert result.exit_code == 2
    assert "Did you mean 'TABLE_FULL'?" in result.output
