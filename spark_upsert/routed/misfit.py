"""Configuration errors of a routed write (`fault_of_write`), which stop the query and park nothing.

*Terms* are options and columns by which tables took rows before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_upsert.errors import OptionError, SchemaError, UpsertFlowError
from spark_upsert.options.declare import TABLE_PREFIX
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.dead_letter import NAMELESS
from spark_upsert.routed.fence import TableShare
from spark_upsert.routed.group import TableGroup

_OF_THE_TABLE = "column"
"""The role of a column that no option names."""


def fault_of_write(
    shares: Mapping[str, TableShare], options: RoutedOptions, group: TableGroup, terms: str
) -> UpsertFlowError | None:
    """Return the error of a batch that is not to be parked, because it is that of the write.

    Until some table took rows by the present terms: no table takes rows in the batch, and one fails
    by an option that applies to all.
    """
    with_rows = {f: share for f, share in shares.items() if share.parts and f != NAMELESS}
    is_proven = group.batch is not None and group.batch.terms == terms
    if is_proven or not all(share.is_parked for share in with_rows.values()):
        return None
    named = ((share.route.name, error) for share in with_rows.values() for error in _errors(share))
    misfits = {name: error for name, error in named if is_misfit(error) and not options.tells(name)}
    return _told(misfits) if misfits else None


def is_misfit(error: UpsertFlowError) -> bool:
    """Return whether a table fails by an option: its value, or a column that it names."""
    if isinstance(error, SchemaError):
        return error.fields.get("role", _OF_THE_TABLE) != _OF_THE_TABLE
    return isinstance(error, OptionError)


def _errors(share: TableShare) -> Iterator[UpsertFlowError]:
    """Yield why the tasks could not stage the rows of a table: each its first error."""
    for part in share.parts:
        if part.parking is not None and part.parking.error is not None:
            yield part.parking.error


def _told(misfits: Mapping[str, UpsertFlowError]) -> UpsertFlowError:
    name, error = next(iter(misfits.items()))
    alike = f", and {len(misfits)} tables fail by their options" if len(misfits) > 1 else ""
    error.say_about("table", name)
    error.advise(
        f"Nothing is parked: no table has taken rows by these options and columns yet{alike}. If "
        f"they are right for others, give '{TABLE_PREFIX}{name}.<option>' with what is right for "
        "this one: a table that is told something by its name is parked."
    )
    return error
