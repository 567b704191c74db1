"""The options that must be the same in each life of a stream, kept in its offsets.

A query may get other options when it starts again, and goes on from its checkpoint; `options.lives`
tells the effect of each change. Most options take effect with the next batch. Two things must not
change, and stand in the offset:

- *How an input began*, with a snapshot or with changes, if the batch began an input. Such a batch
  has no position to begin at, and its end may be the same for both. ``began`` has what each of
  these inputs says (`Input.begins`), and is in no other offset.
- *Which rows a step has*, under an exact order, which counts the rows of a step that is begun:
  ``reads`` of its state (`exact`) has what each input says that decides (`Input.decides`), each
  different answer once.

Offsets that were written before these were kept are taken as they are. An option that they do not
know had its default value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spark_upsert.errors import OptionError
from spark_upsert.options.read import READ_OPTIONS
from spark_upsert.store.records import MALFORMED, whole
from spark_upsert.streams.inputs.input import Input
from spark_upsert.streams.offsets.offset import without
from spark_upsert.streams.offsets.position import Json, canonical

BEGAN = "began"
"""In the state of an offset: where the inputs began that this batch is the first of."""

ANY = ""
"""Stands for all inputs that are not named: an input is called so only where it is alone."""

_USUAL = {name: each.default for name, each in READ_OPTIONS.items()}
"""The values of options of which offsets say nothing: a release that wrote them had no others."""

Reads = Mapping[str, Mapping[str, Json]]
"""The options that decide which rows the steps of inputs have, by the inputs' names."""


def with_began(state: Mapping[str, Json], fresh: Mapping[str, Input]) -> dict[str, Json]:
    """Return the state of an offset of a batch that is the first of some inputs."""
    kept = without(state, BEGAN)
    begins = {name: own for name, each in fresh.items() if (own := each.begins())}
    return {**kept, BEGAN: reads_record(begins)} if begins else kept


def require_same_beginning(state: Mapping[str, Json], fresh: Mapping[str, Input]) -> None:
    """Refuse to replay the first batch of inputs by other options than it was planned by.

    Parameters
    ----------
    state : mapping
        That of the end of the batch.
    fresh : mapping of str to Input
        The inputs that have no position at its begin, by name.

    Raises
    ------
    OptionError
        It names the input, the option, and what it was; or the entry is none.
    """
    if (record := state.get(BEGAN)) is None:
        return
    try:
        known = reads_from(record, None)
    except MALFORMED as error:
        raise OptionError(
            f"the checkpoint holds {record!r:.500}, which does not say how inputs began.",
            hint="the checkpoint was altered; give the query a new checkpointLocation.",
        ) from error
    now = {name: own for name, each in fresh.items() if (own := each.begins())}
    for name, option, was, is_ in _different(known, now):
        raise OptionError(
            f"the first batch{_of(name)} was planned and not delivered, with '{option}' {was}, and "
            f"is to be delivered with '{option}' {is_}.",
            hint=f"give '{option}' as it was, at least until that batch is delivered; or give the "
            "query a new checkpointLocation.",
            option=option,
            input=name,
        )


def reads_of(inputs: Mapping[str, Input]) -> dict[str, Mapping[str, Json]]:
    """Return what decides, for each input that says so (`Input.decides`)."""
    return {name: own for name, each in inputs.items() if (own := each.decides())}


def reads_record(reads: Reads) -> dict[str, Json]:
    """Return the form that stands in an offset: each different answer once, the first by default.

    ``{"kinds": [answers], "of": {input: index of its answer, where that is not 0}}``
    """
    texts = {name: canonical(dict(answer)) for name, answer in reads.items()}
    kinds = list(dict.fromkeys(texts.values()))
    own = {text: index for index, text in enumerate(kinds)}
    found = {text: dict(reads[name]) for name, text in texts.items()}
    return {
        "kinds": [found[text] for text in kinds],
        "of": {name: own[text] for name, text in texts.items() if own[text]},
    }


def reads_from(record: Any, names: Sequence[str] | None) -> dict[str, Mapping[str, Json]]:
    """Rebuild it; raises `AttributeError`, `LookupError`, `TypeError` or `ValueError`.

    Parameters
    ----------
    names : sequence of str, optional
        Those that it is about; by default those that it names, and "" for all others.
    """
    kinds = [json.loads(canonical(dict(kind))) for kind in record["kinds"]]
    of = {str(name): whole(place, most=len(kinds) - 1) for name, place in record["of"].items()}
    if names is None:
        return {ANY: kinds[0], **{name: kinds[place] for name, place in of.items()}}
    if not of.keys() <= set(names):
        raise ValueError("an input is meant that is not named")
    return {name: kinds[of.get(name, 0)] for name in names} if kinds else {}


def require_same_reads(before: Reads, now: Reads) -> None:
    """Refuse other options than those by which the rows of an exact order were counted.

    Raises
    ------
    OptionError
        It names the input, the option, and what it was.
    """
    for name, option, was, is_ in _different(before, now):
        raise OptionError(
            f"'{option}' was {was} when the rows of this exact order were counted, and is {is_} "
            f"now{_of(name)}.",
            hint=f"give '{option}' as it was, or give the query a new checkpointLocation.",
            option=option,
            input=name,
        )


def _different(before: Reads, now: Reads) -> Iterator[tuple[str, str, str, str]]:
    """Yield the inputs and options that differ, with what they were and are."""
    for name, answer in now.items():
        known = before.get(name, before.get(ANY, answer))
        for option in sorted({*known, *answer}):
            was, is_ = (each.get(option, _USUAL.get(option)) for each in (known, answer))
            if was != is_:
                yield name, option, _told(was), _told(is_)


def _of(name: str) -> str:
    return f" of the input '{name}'" if name else ""


def _told(value: Json) -> str:
    return "not given" if value is None else canonical(value)
