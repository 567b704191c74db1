"""Every hint is followed: a mistake, then literally what its message tells, and it works.

A hint of the product that no test follows fails here, by its name (`tests.hints.sites`). It is
followed by a function of `tests.hints`, on Spark where it needs one (`integration.test_hints`), or
by a test elsewhere that needs a server (`ELSEWHERE`); a few cannot be followed in a test, and say
why (`APART`).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from spark_upsert.cli.commands import upsertflow
from spark_upsert.errors import OptionError
from tests.hints.elsewhere import APART, ELSEWHERE
from tests.hints.hint import FOLLOWED, ON_SPARK, Following, Told, follow
from tests.hints.sites import Site, sites, texts
from tools.option_reference import SCOPES

ROOT = Path(__file__).parents[2]

CASES = [(site, test) for site, tests in sorted(FOLLOWED.items()) for test in tests]


@pytest.mark.parametrize(("site", "test"), CASES, ids=[site for site, _ in CASES])
@pytest.mark.sweep(40)
def test_what_a_hint_tells_works(site: str, test: Following, tmp_path: Path) -> None:
    follow(site, test, tmp_path)


def test_every_hint_is_followed() -> None:
    known = {*FOLLOWED, *ON_SPARK, *ELSEWHERE, *APART}
    missing = [f"{each.place}: {name}" for name, each in sites().items() if name not in known]
    assert not missing, "follow these hints by tests in tests/hints:\n" + "\n".join(missing)


def test_no_test_follows_a_hint_that_is_not_there() -> None:
    named = [*{*FOLLOWED, *ON_SPARK}, *ELSEWHERE, *APART]
    assert sorted(name for name in named if name not in sites()) == []
    assert sorted({name for name in named if named.count(name) > 1}) == []


def test_the_tests_elsewhere_are_there() -> None:
    for site, test in ELSEWHERE.items():
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function in names, f"{test}, which is to follow {site}"


A_SITE = Site("room:function", "drop it\\.", "room.py:1")


def told_of(hint: str, tmp_path: Path) -> Told:
    told = Told(A_SITE, tmp_path)
    with told:
        raise OptionError("no.", hint=hint)
    return told


def test_a_mistake_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="was no error"), Told(A_SITE, tmp_path):
        pass


def test_a_mistake_must_tell_this_hint(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="another hint"):
        told_of("keep it.", tmp_path)


def test_only_what_is_told_is_followed(tmp_path: Path) -> None:
    told = told_of("drop it.", tmp_path)
    with pytest.raises(AssertionError, match="does not tell"):
        told("keep it")


def test_advice_that_fails_is_named(tmp_path: Path) -> None:
    site, known = next(iter(sites().items()))

    def test(told: Told) -> None:
        told.error = OptionError("no.", hint="drop it.")
        told("drop it")
        raise OptionError("still no.")

    with pytest.raises(AssertionError, match=r"does not work: \['drop it'\]"):
        follow(site, test, tmp_path)
    assert known.name == site


def test_advice_must_be_followed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no advice was followed"):
        follow(next(iter(sites())), lambda told: None, tmp_path)


COMMAND = re.compile(r"(?:['`]|run |: )upsertflow ([a-z][a-z-]+)((?: [-\w.'\"=]+)*)")

OPTIONS = {name for scope in SCOPES.values() for name in scope}
OPTIONS |= {
    *("readStream", "saveAsTable", "toTable", "withColumn", "checkpointLocation"),  # Spark's
    "subscribePattern",  # of Spark's Kafka source
    *("channelIsolation", "noChannelInfluence"),  # arguments of a flow
    "schemaRegistry",  # the first part of several names
}
"""Names of mixed case that a hint may have."""

COLUMNS = {"_change_type", "_diff", "_merge_seq"}


def unknown_names(text: str) -> list[str]:
    """Return the options, commands, flags and columns in a hint that do not exist."""
    unknown = [name for name in re.findall(r"\b[a-z]+[A-Z]\w*", text) if name not in OPTIONS]
    unknown += [name for name in re.findall(r"(?<![\w.])_[a-z]\w+", text) if name not in COLUMNS]
    for name, arguments in COMMAND.findall(text):
        command = upsertflow.commands.get(name)
        if command is None:
            unknown.append(f"upsertflow {name}")
            continue
        flags = {flag for parameter in command.params for flag in parameter.opts}
        unknown += [flag for flag in re.findall(r"--[a-z-]+", arguments) if flag not in flags]
    return unknown


def test_a_hint_names_only_options_commands_and_columns_that_exist() -> None:
    unknown = {place: names for place, text in texts() if (names := unknown_names(text))}
    assert unknown == {}


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("give onError=inline", []),
        ("give onErrors=inline", ["onErrors"]),
        ("run 'upsertflow expire TABLE --retain 1h'", []),
        ("run 'upsertflow expire TABLE --keep 1h'", ["--keep"]),
        ("run 'upsertflow remove TABLE'", ["upsertflow remove"]),
        ("make it again: upsertflow idx TABLE", ["upsertflow idx"]),
        ("install a newer upsertflow on the cluster", []),
        ("drop the column _change_type or _change", ["_change"]),
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, unknown: list[str]) -> None:
    assert unknown_names(text) == unknown
