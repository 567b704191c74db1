"""Values and folders of a routed write undo each other, and no folder leaves the root."""

from __future__ import annotations

import posixpath
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from hypothesis import assume, example, given
from hypothesis import strategies as st

from spark_upsert.core.path_template import SEGMENT_BYTES_MAX, Template
from spark_upsert.errors import DataError, OptionError
from spark_upsert.options.declare import path_below
from spark_upsert.options.inputs import Pattern

ROOTS = st.sampled_from(["/lake", "/", "s3://bucket/lake", "/a b/{{c}}"])
LITERALS = st.sampled_from(["", "a", "=", "=2E", ".", "-", "_", "x.", ".x", "--", "{{", "}}"])
VALUES = st.lists(st.sampled_from([*"aA_.-=/%{} \0é2E", "𝄞", "=2E"]), max_size=4).map("".join)


@st.composite
def templates(draw: st.DrawFn) -> Template:
    """Draw a template of one to three columns in one to three names."""
    text, count = draw(ROOTS).rstrip("/") + "/", draw(st.integers(1, 3))
    text += draw(LITERALS)
    for index in range(count):
        between = draw(LITERALS) + draw(st.sampled_from(["", "/"])) + draw(LITERALS)
        text += f"{{c{index}}}{between if index < count - 1 else draw(LITERALS)}"
    try:
        return Template.parse(text)
    except OptionError:
        assume(False)
        raise


def folder(template: Template, values: tuple[str, ...]) -> str | None:
    try:
        return template.folder(values)
    except DataError:
        return None


def tuples(template: Template) -> st.SearchStrategy[tuple[str, ...]]:
    return st.tuples(*[VALUES for _ in template.columns])


@given(data=st.data(), template=templates())
def test_a_folder_is_taken_apart_into_its_values(data: st.DataObject, template: Template) -> None:
    values = data.draw(tuples(template))
    found = folder(template, values)
    assume(found is not None)
    assert template.try_values(found or "") == values


@given(data=st.data(), template=templates())
def test_other_values_have_another_folder_beside_it(
    data: st.DataObject, template: Template
) -> None:
    one, other = (data.draw(tuples(template)) for _ in range(2))
    folders = [folder(template, values) for values in (one, other)]
    assume(one != other and None not in folders)
    first, second = (PurePosixPath(each or "") for each in folders)
    assert first != second
    assert first not in second.parents
    assert second not in first.parents


@given(data=st.data(), template=templates())
def test_a_folder_lies_below_the_root_and_is_never_hidden(
    data: st.DataObject, template: Template
) -> None:
    found = folder(template, data.draw(tuples(template)))
    assume(found is not None)
    names = (found or "").split("/")
    assert len(names) == len(template.segments)
    assert posixpath.normpath(found or "") == found
    for name in names:
        assert name
        assert not name.startswith(("_", "."))
        assert len(name) <= SEGMENT_BYTES_MAX
        assert name.isascii()
        assert name.isprintable()


@given(template=templates(), text=st.text(st.sampled_from("aA_.-=2Ec3/"), max_size=12))
@example(template=Template.parse("/l/{a}"), text="=2e")
@example(template=Template.parse("/l/{a}"), text="=61")
@example(template=Template.parse("/l/{a}"), text="=FF")
@example(template=Template.parse("/l/{a}.{b}"), text="a.b.c")
def test_a_folder_that_no_values_lead_to_has_none(template: Template, text: str) -> None:
    values = template.try_values(text)
    assert values is None or template.folder(values) == text


@given(data=st.data(), template=templates())
def test_a_folder_is_the_same_as_a_path_a_url_and_a_found_input(
    data: st.DataObject, template: Template
) -> None:
    found = folder(template, data.draw(tuples(template)))
    assume(found is not None)
    path = path_below(template.root, found or "")
    shown = unquote(urlsplit(path).path) if "://" in path else path
    assert shown.endswith(f"/{found}")
    assert "//" not in shown
    pattern = Pattern.parse("/".join("*" for _ in template.segments))
    pairs = zip((found or "").split("/"), pattern.parts, strict=True)
    assert all(fnmatchcase(name, part) for name, part in pairs)
