"""How the two sides of Kafka's records are written, as options say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_upsert.errors import OptionError
from spark_upsert.options.parse import one_of
from spark_upsert.payloads.avro import parse_avro
from spark_upsert.payloads.confluent import ConfluentDecoder
from spark_upsert.payloads.connect.json import DeclaredJsonDecoder
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.decoder import Decoder
from spark_upsert.payloads.raw import RawDecoder

JSON, AVRO, RAW = "json", "avro", "raw"

FORMATS = (JSON, AVRO, RAW, "json-confluent", "avro-confluent")
"""How a payload may be written; the latter two behind Confluent's header."""


def is_json(name: str | None) -> bool:
    """Return whether a format (`FORMATS`) writes JSON."""
    return name is not None and name.lower().partition("-")[0] == JSON


@dataclass(frozen=True)
class Written:
    """How one side is written.

    Parameters
    ----------
    side : {"key", "value"}
    name : str
        The format as the user named it.
    text : str or None
        The option ``<side>Schema``.
    schema_id : int or None
        The option ``<side>SchemaId``.
    """

    side: str
    name: str
    text: str | None
    schema_id: int | None

    @classmethod
    def parse(
        cls,
        side: str,
        given: Mapping[str, str | None],
        schema_ids: Mapping[str, int | None],
        *,
        formats: Sequence[str] = FORMATS,
        default: str | None = None,
    ) -> Written:
        """Check the options of a side.

        Parameters
        ----------
        side : {"key", "value"}
        given : mapping of str to str or None
            The options ``<side>Format`` and ``<side>Schema``.
        schema_ids : mapping of str to int or None
            The ids of schemas, by side.
        formats : sequence of str
            The formats that are allowed.
        default : str, optional
            The format if none is given; without it, one must be.
        """
        option = f"{side}Format"
        name = given[option] or default
        if name is None:
            raise OptionError.missing(option, f"one of {', '.join(formats)}")
        name = one_of(option, name, formats)
        written = cls(side, name, given[f"{side}Schema"], schema_ids[side])
        if written.schema_id is not None and not written.has_header:
            raise OptionError(
                f"option '{side}SchemaId' has no meaning with {option}={name}.",
                hint=f"use {option}={name}-confluent, or drop the option.",
                option=f"{side}SchemaId",
            )
        return written

    @property
    def format(self) -> str:
        """``json``, ``avro`` or ``raw``."""
        return self.name.lower().partition("-")[0]

    @property
    def has_header(self) -> bool:
        """Whether Confluent's header stands before each payload."""
        return "-" in self.name

    @property
    def option(self) -> str:
        """The name of the option that declares what is written."""
        return f"{self.side}Schema"

    def require_text(self) -> str:
        """Return what is declared."""
        if self.text is None:
            raise OptionError.missing(
                self.option, f"what the {self.side}s hold, for {self.side}Format={self.name}"
            )
        return self.text

    def behind_header(self, decoder: Decoder) -> Decoder:
        """Return a decoder of whole payloads, given a decoder of the bytes behind the header."""
        return ConfluentDecoder(decoder, self.schema_id) if self.has_header else decoder

    def decoder(self) -> Decoder:
        """Return the decoder of payloads that are just what is declared."""
        if self.format == AVRO:
            decoder: Decoder = parse_avro(self.option, self.require_text(), bare_name=self.side)
        elif self.format == RAW:
            fields, _ = parse_schema(self.option, self.text or "BINARY", bare_name=self.side)
            decoder = RawDecoder(fields)
        else:
            fields, is_bare = parse_schema(self.option, self.require_text(), bare_name=self.side)
            decoder = DeclaredJsonDecoder(fields, is_bare)
        return self.behind_header(decoder)
