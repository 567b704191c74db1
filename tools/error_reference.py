"""Write `docs/errors.md` from the error code entries in `spark_upsert.cli.error_codes`.

Run ``make pages`` after changing it; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spark_upsert.cli.error_codes import ENTRIES
from spark_upsert.delta import types
from spark_upsert.errors import UpsertFlowError

TARGET = Path(__file__).parent.parent / "docs" / "errors.md"

_HEAD = """# Errors

The message of every upsertflow error starts with a code in brackets, such as `[TABLE_FULL]`, and contains a hint. Codes are
stable; texts may change. The last line names the command that prints the code's entry: `upsertflow explain-error TABLE_FULL`.
`tools/error_reference.py` generates this page.

After a crash, a table needs no manual recovery.
"""


def reference() -> str:
    """Return the whole page."""
    return _HEAD + "".join(f"\n## {code}\n\n{told}" for code, told in sections().items())


def sections() -> dict[str, str]:
    """Return each code's section, sorted by code."""
    by_code = classes()
    return {
        code: f"{entry.means}\n\n**Do**: {entry.do}\n"
        + (f"\nIn Python: {_caught(by_code[code])}.\n" if code in by_code else "")
        for code, entry in sorted(ENTRIES.items())
    }


def _caught(cls: type[UpsertFlowError]) -> str:
    foreign = [each.__name__ for each in cls.__bases__ if not issubclass(each, UpsertFlowError)]
    also = "".join(f", a subclass of `{name}`" for name in foreign)
    return f"`{cls.__module__}.{cls.__qualname__}`{also}"


def classes() -> dict[str, type[UpsertFlowError]]:
    """Return the Python exception classes by code."""
    assert types.MirroredTypeError.code  # The import registers the classes declared there.
    found: dict[str, type[UpsertFlowError]] = {}
    ours: list[type[UpsertFlowError]] = [UpsertFlowError, *_below(UpsertFlowError)]
    for each in ours:
        if each.__module__.startswith("spark_upsert.") and "code" in vars(each):
            found[each.code] = each
    return found


def _below(parent: type[UpsertFlowError]) -> Iterator[type[UpsertFlowError]]:
    for each in parent.__subclasses__():
        yield each
        yield from _below(each)


if __name__ == "__main__":
    TARGET.write_text(reference())
