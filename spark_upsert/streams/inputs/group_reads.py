"""Reads of all tables below a root at one batch: which tables take part, and at which version each.

The record of the batch in the root's group table alone decides: a table that it does not know is
not read, and neither are rows that other writers put into a table after the batch.
"""

from __future__ import annotations

from dataclasses import replace

from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.options.below import Below
from spark_upsert.options.inputs import Pin
from spark_upsert.options.read import ReadOptions
from spark_upsert.routed.group import GroupTable, TableGroup
from spark_upsert.store.resolve import open_store
from spark_upsert.streams.inputs.discovery import matches
from spark_upsert.streams.inputs.table import OTHER_THAN_IN_GROUP, no_group
from spark_upsert.table.table import Table


def group_table(below: Below) -> GroupTable:
    """Return the group table of the root that inputs are found below."""
    return GroupTable(open_store(below.root, below.storage))


def pins(below: Below) -> dict[str, Pin]:
    """Return the tables that are read at a batch, by their names or paths below the root, sorted.

    Raises
    ------
    TableNotFoundError
        No query has written a whole batch below the root.
    OptionError
        There is no such batch, or no table of it matches.
    DataLossError
        The batch is expired.
    """
    table = group_table(below)
    group = table.at() if below.as_of_batch is None else table.of_batch(below.as_of_batch)
    if group.batch is None:
        raise no_group(below.root)
    found = pins_of(group, below)
    missing = sorted(below.named.keys() - found.keys())
    if missing:
        raise OptionError(
            f"the input '{missing[0]}' is the folder '{below.named[missing[0]]}' below "
            f"'{below.root}', and no table there has {_named(group.batch.number)}.",
            hint=f"check the path; 'upsertflow tables {below.root}' lists the tables that have it.",
            option="inputs",
            input=missing[0],
        )
    if not found:
        raise OptionError(
            f"of the {len(group.members)} tables that have {_named(group.batch.number)} below "
            f"'{below.root}' none matches '{below.pattern}'.",
            hint="check 'inputsPattern'; a table takes part from its first whole batch on.",
            option="inputsPattern",
        )
    return found


def pins_of(group: TableGroup, below: Below) -> dict[str, Pin]:
    """Return the tables of a group that have names, or that a pattern finds (`pins`)."""
    number = group.batch.number if group.batch else None
    if below.named:
        return {
            name: Pin(place=group.members[folder].place, batch=number)
            for name, folder in sorted(below.named.items())
            if folder in group.members
        }
    return {
        folder: Pin(place=group.members[folder].place, batch=number)
        for folder in sorted(group.members)
        if matches(folder, below.pattern)
    }


def at_batch(options: ReadOptions, table: Table, pin: Pin | None) -> ReadOptions:
    """Return the options of a batch read of a table as they are at the batch that it is read at.

    Raises
    ------
    OtherTableError
        The table is not the one that has the batch.
    DataLossError
        Its version is expired, and rows may have changed since.
    """
    if pin is None:
        return options
    place = pin.place
    newest = table.log.require(place, _named(pin.batch), hint=OTHER_THAN_IN_GROUP)
    with table.log.last_look() as look:
        version = look.kept(place.version)
    if version is None:
        raise DataLossError(
            f"{_named(pin.batch)} has version {place.version} of the table at '{options.path}', "
            f"which can be read from version {newest.since} on only: what is older was expired.",
            hint="read without 'consistent', or again when the query has written to this table "
            "next; keep more from now on, by a longer --retain of 'upsertflow expire'.",
            since=newest.since,
            newest=newest.version,
            batch=pin.batch,
        )
    if options.change_feed or options.history:
        return replace(options, ending_version=version)
    return replace(options, version_as_of=version)


def _named(batch: int | None) -> str:
    return "the newest whole batch" if batch is None else f"batch {batch}"
