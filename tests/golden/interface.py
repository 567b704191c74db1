"""What a release promises to keep: options with values and defaults, errors, commands, names.

Rejected: to read it from the pages. They are made for people, and change their words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import click

import pyspark_upsertflow
import spark_upsert
import upsertflow as public
from spark_upsert.cli.commands import upsertflow
from spark_upsert.errors import OptionError, UpsertFlowError
from spark_upsert.options.declare import Option, Options
from tools.option_reference import SCOPES


def interface() -> dict[str, Any]:
    """Return all names of this release, and what its options take, as JSON has them."""
    return {
        "options": {
            scope: {name: _option(option) for name, option in sorted(options.items())}
            for scope, options in SCOPES.items()
        },
        "errors": sorted({each.code for each in _below(UpsertFlowError)}),
        "commands": {name: _parameters(each) for name, each in sorted(upsertflow.commands.items())},
        "names": {
            module.__name__: sorted(module.__all__)
            for module in (public, spark_upsert, pyspark_upsertflow)
        },
    }


def lost(before: Any, now: Any, place: str = "") -> Iterator[str]:
    """Yield what one release had and another one lacks, or has otherwise."""
    if isinstance(before, dict):
        for name, each in before.items():
            if name not in now:
                yield f"{place}.{name} is gone"
            else:
                yield from lost(each, now[name], f"{place}.{name}")
    elif isinstance(before, list):
        yield from (f"{place}.{each} is gone" for each in before if each not in now)
    elif before != now:
        yield f"{place} was {before!r} and is {now!r}"


def _option(option: Option[Any]) -> dict[str, Any]:
    """Return the default of an option, and the values that it takes if it takes a few.

    An option tells its values by refusing another one.
    """
    default = option.default.value if isinstance(option.default, Enum) else option.default
    found: dict[str, Any] = {"default": default if default is None else str(default)}
    try:
        option.read(Options({option.name: "no such value"}, [option.name]), option.name)
    except OptionError as error:
        if told := re.search(r"expects one of (.+), found", str(error)):
            found["values"] = told[1].split(", ")
    return found


def _parameters(command: click.Command) -> list[str]:
    return sorted(name for each in command.params for name in each.opts)


def _below(cls: type[UpsertFlowError]) -> Iterator[type[UpsertFlowError]]:
    for each in cls.__subclasses__():
        if each.__module__.split(".")[0] in ("spark_upsert", "spark_upsert_sink"):
            yield each
            yield from _below(each)
