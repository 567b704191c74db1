"""Hints of paths that name columns of the rows."""

from __future__ import annotations

from collections.abc import Mapping

from spark_upsert.routed.template import Template
from tests.hints.hint import Told, follows

PATHS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("routed.template:Template.parse", "/lake/topic", {"/lake/{topic}": "/lake/{topic}"}),
    (
        "routed.template:_pieces",
        "/lake/{topic",
        {
            "/lake/{topic}": "/lake/{topic}",
            "a brace that is meant as such is doubled: '{{' and '}}'": "/la{{ke/{topic}",
        },
    ),
    (
        "routed.template:_segment",
        "/lake/{topic} x",
        {"write letters, digits and '_-.=+@,' there": "/lake/{topic}-x"},
    ),
    (
        "routed.template:_segment:2",
        "/lake/{a}{b}",
        {
            "put a '.'": "/lake/{a}.{b}",
            "'-'": "/lake/{a}-{b}",
            "or '_' between them": "/lake/{a}_{b}",
            "or a '/'": "/lake/{a}/{b}",
        },
    ),
    (
        "routed.template:_segment:3",
        "/lake/{a}/.hidden",
        {
            "a letter or a digit": "/lake/{a}/hidden",
            "begin each name there with a column": "/lake/{a}/{b}.hidden",
        },
    ),
    (
        "routed.template:_column",
        "/lake/{}",
        {"/lake/{topic}": "/lake/{topic}", "dots lead into structs": "/lake/{source.table}"},
    ),
    (
        "routed.template:_require_each_once",
        "/lake/{a}/{A}",
        {"name each column once": "/lake/{a}"},
    ),
    (
        "routed.template:_root",
        "s3://{bucket}/lake",
        {
            "write one query for each bucket, with columns in the names below it": (
                "s3://east/lake/{topic}"
            )
        },
    ),
)


def of_path(site: str, wrong: str, advice: Mapping[str, str]) -> None:
    @follows(site)
    def _(told: Told) -> None:
        with told:
            Template.parse(wrong)
        for quoted, path in advice.items():
            told(quoted)
            Template.parse(path)


for _case in PATHS:
    of_path(*_case)


@follows("routed.template:Segment._unnameable")
def _(told: Told) -> None:
    template = Template.parse("/lake/{topic}")
    with told:
        template.folder(["x" * 300])
    told("give such rows another value")
    assert template.folder(["x" * 30])
