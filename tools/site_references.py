"""Pages of the site that are made: commands from the parser, public names from docstrings, a page of each error."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import upsertflow as public
from spark_upsert.cli.commands import upsertflow
from tools.error_reference import TARGET, sections

PACKAGES = {"spark_upsert", "pyspark_upsertflow"}
WIDTH = 90
"""Columns of a help text."""


def commands() -> str:
    """Return the page of commands: what ``--help`` prints of each."""
    page = "# Commands\n\nWhat `upsertflow COMMAND --help` prints, command by command.\n"
    return page + "".join(_help_of(upsertflow, "upsertflow"))


def _help_of(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
    yield f"\n## {name}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each, below in sorted(command.commands.items()):
            if not below.hidden:
                yield from _help_of(below, f"{name} {each}")


def errors() -> dict[str, str]:
    """Return a page of each code of an error: what it means, what to do, and the pages that speak of it."""
    pages = [page for page in sorted(TARGET.parent.glob("*.md")) if page != TARGET]
    return {
        error_page(code): f"# {code}\n\n{told}{''.join(_speaking_of(code, pages))}"
        for code, told in sections().items()
    }


def error_page(code: str) -> str:
    """Return where on the site the page of a code lies."""
    return f"errors/{code}.md"


def _speaking_of(code: str, pages: list[Path]) -> Iterator[str]:
    texts = {page: page.read_text("utf-8") for page in pages}
    found = [page for page, text in texts.items() if re.search(rf"\b{code}\b", text)]
    if found:
        yield "\n## Pages that speak of it\n\n"
    for page in found:
        title = texts[page].partition("\n")[0].removeprefix("# ")
        yield f"- [{title}](../{page.name})\n"


def functions() -> str:
    """Return the page of public names: signatures and docstrings."""
    page = "# Functions\n\nThe public names of the package `upsertflow`, by their docstrings.\n"
    return page + "".join(_public_names())


def _public_names() -> Iterator[str]:
    for name in sorted(public.__all__):
        found = getattr(public, name)
        if not (inspect.isclass(found) or inspect.isroutine(found)):
            continue
        yield f"\n## {name}\n\n{_told(name, found)}"
        for method, called in _methods(found):
            yield f"\n### {name}.{method}\n\n{_told(method, called)}"


def _methods(found: Any) -> list[tuple[str, Any]]:
    """Return the documented public methods of a class, with those of our own base classes."""
    if not inspect.isclass(found):
        return []
    own_classes = [each for each in found.__mro__ if each.__module__.split(".")[0] in PACKAGES]
    names = {name for each in own_classes for name in vars(each) if not name.startswith("_")}
    methods = ((name, getattr(found, name)) for name in sorted(names))
    return [(name, method) for name, method in methods if callable(method) and method.__doc__]


def _told(name: str, found: Any) -> str:
    try:
        signature = f"```python\n{name}{inspect.signature(found)}\n```\n\n"
    except ValueError:  # Some classes of C have none.
        signature = ""
    said = inspect.getdoc(found) or ""
    return f"{signature}```text\n{said}\n```\n"
