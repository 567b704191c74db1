"""JSON Schema as a registry keeps it, in the words of Kafka Connect's schemas.

A schema says what values may be there, and far more than a column can say; what is taken of it is
its types. ``connect.type`` and ``title`` are what Confluent's converter adds, so that the schema of
a Connect record comes back as it was.

======================================================  ====================================
``integer``, ``number``, ``string``, ``boolean``         ``int64``, ``double``, as they are
``object`` with ``properties``                           a struct
``array`` with one schema of ``items``                   an array
``null``, or ``oneOf``/``anyOf`` of it and another one   the other one
``enum`` of texts                                        ``string``
``$ref`` within the document, or to a referenced one     what stands there
======================================================  ====================================

Source: JSON Schema draft 7 and 2020-12; ``JsonSchemaData`` of Confluent's converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_upsert.payloads.budgets import DEPTH_MAX, Parts, Unreadable
from spark_upsert.payloads.connect.logical import DECIMAL, Said

REFERENCED = "x-referenced"
"""The member of a document that holds the documents it refers to, by name (`payloads.registry`)."""

_PLAIN: Mapping[str, str] = {
    "integer": "int64",
    "number": "double",
    "string": "string",
    "boolean": "boolean",
}


_SEVERAL = "one of several"
"""The type of a value that may be of several types: no column holds it."""


def said_of(document: Any) -> Said:
    """Return what a schema says.

    Raises
    ------
    Unreadable
        It says nothing that a column could hold, or is none.
    """
    try:
        return _Reader(document).said(document, 0)
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:
        raise Unreadable(f"it is no JSON Schema ({type(error).__name__}: {error})") from error


class _Reader:
    def __init__(self, document: Any) -> None:
        self._document = document
        self._parts = Parts()

    def said(self, schema: Any, depth: int) -> Said:
        """Return what a part of the document says."""
        self._parts.enter(depth)
        schema = self._plain(schema)
        kind = schema.get("type", _implied(schema))
        if isinstance(kind, list):
            others = [each for each in kind if each != "null"]
            if len(others) != 1:
                return Said(" or ".join(map(str, others or kind)))
            kind = others[0]
        name = schema.get("title")
        if kind == "object" and schema.get("connect.type") != "map":
            return Said("struct", name, fields=self._members(schema, depth))
        if kind == "array" and isinstance(schema.get("items"), dict):
            if schema.get("connect.type") == "map":
                return Said("map")
            return Said("array", name, items=self.said(schema["items"], depth + 1))
        if kind not in _PLAIN:
            return Said(str(kind) if kind != "object" else "map")
        own = str(schema.get("connect.type", _PLAIN[kind]))
        if name == DECIMAL and kind == "number":
            own = "double"  # Its digits are those of a number, not bytes in Base64.
        parameters = schema.get("connect.parameters", {})
        return Said(own, name, parameters={str(k): str(v) for k, v in parameters.items()})

    def _members(self, schema: Any, depth: int) -> dict[str, Said]:
        given = list(schema.get("properties", {}).items())
        # Confluent's converter numbers them: JSON's objects have no order.
        given.sort(key=lambda item: int(item[1].get("connect.index", 0)))
        return {str(name): self.said(part, depth + 1) for name, part in given}

    def _plain(self, schema: Any) -> Any:
        """Follow references and the choices that mean "or null"."""
        for _ in range(DEPTH_MAX):
            choices = schema.get("oneOf") or schema.get("anyOf")
            if "$ref" in schema:
                schema = self._referred(str(schema["$ref"]))
            elif choices:
                others = [each for each in choices if each.get("type") != "null"]
                if len(others) != 1:
                    return {"type": _SEVERAL}
                schema = others[0]
            elif len(schema.get("allOf", ())) == 1:
                schema = schema["allOf"][0]
            else:
                return schema
        raise Unreadable("it refers to itself")

    def _referred(self, reference: str) -> Any:
        name, _, pointer = reference.partition("#")
        at = self._document[REFERENCED][name] if name else self._document
        for part in pointer.split("/")[1:]:
            at = at[part.replace("~1", "/").replace("~0", "~")]
        return at


def _implied(schema: Any) -> str | None:
    """Return the type of a schema that does not name it."""
    if "properties" in schema:
        return "object"
    texts = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return "string" if texts and all(isinstance(text, str) for text in texts) else None
