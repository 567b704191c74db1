"""Document boundaries over several inputs: what is forwarded of them."""

from __future__ import annotations

import pytest

from spark_upsert.merge.merged import DocumentClose, DocumentOpen, Documents


@pytest.mark.parametrize(
    ("history", "opened", "closed"),
    [
        pytest.param("(a (b )a )b", "a", "b", id="41: open a, open b, close a, close b"),
        pytest.param(")a", "", "", id="43: a close only"),
        pytest.param("(a", "a", "", id="an open only"),
        pytest.param("(a )a (b )b", "a", "b", id="one input after the other: the last close"),
        pytest.param("(a (b )b )a", "a", "a", id="the close that came last"),
        pytest.param("(a (b )a", "a", "", id="one input does not close it"),
        pytest.param("(a )a )a", "a", "a", id="a close too many"),
        pytest.param("", "", "", id="no marks"),
    ],
)
def test_what_is_forwarded_of_a_document(history: str, opened: str, closed: str) -> None:
    """``(a`` is an open from input a, ``)a`` a close; the result names the input it came from."""
    documents: Documents[str] = Documents()
    forwarded = []
    for each in history.split():
        name = each[1]
        mark = DocumentOpen("D") if each[0] == "(" else DocumentClose("D")
        if documents.is_forwarded(mark, name):
            forwarded.append(name)
    assert ("".join(forwarded), "".join(documents.closings())) == (opened, closed)
