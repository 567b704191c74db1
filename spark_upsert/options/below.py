"""Inputs that are found: ``path`` is a root, ``inputsPattern`` a glob over the folders below it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from spark_upsert.errors import OptionError
from spark_upsert.options.declare import BATCH, Change, Life, Option, Options, at_least, flag, fold

_MEANT = re.compile(r"\*\*|\{[^/]*,[^/]*\}")
"""Signs of other globs that are refused: any number of folders, or one of several names."""

GROUP = "_group"
"""The folder, below a root, of the table that tells which batches all tables have."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A glob over the folders below a root, one part for each level."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Check a pattern.

        Raises
        ------
        OptionError
            It is empty or absolute, leads upwards, or has ``**`` or ``{a,b}``.
        """
        parts = text.strip().split("/")
        if not all(parts) or any(part in (".", "..") or _MEANT.search(part) for part in parts):
            raise OptionError.invalid(
                "inputsPattern",
                text,
                "a glob over the folders below 'path'",
                hint="write '*' for all tables directly below 'path', or one part for each level, "
                "such as 'region=*/orders'; '**', '..', '{a,b}' and a '/' at either end have no "
                "meaning.",
            )
        return cls(tuple(parts))

    def __str__(self) -> str:
        return "/".join(self.parts)


def _pattern(options: Options, name: str) -> Pattern | None:
    text = options.text(name)
    return None if text is None else Pattern.parse(text)


def path_below(root: str, folder: str) -> str:
    """Return the path of a folder below a root, which is a path or a URL."""
    # A URL holds no bare '%', '#' or '?'.
    below = quote(folder, safe="/!$&'()*+,:;=@~") if ":/" in root else folder
    return f"{root.rstrip('/')}/{below}"


@dataclass(frozen=True, kw_only=True)
class DiscoveryOptions:
    """That the inputs of a read are the tables below a root that a pattern matches."""

    root: str
    pattern: Pattern = Option(
        "inputsPattern",
        _pattern,
        Life(
            Change.REFUSED,
            "where it finds a table no more (`failOnDataLoss`); one that is new begins",
        ),
        required=True,
    ).held(
        "Instead of `inputs`: a glob over the folders below `path`, such as `*` or "
        "`region=*/orders`. Each table that it matches is an input, named by its path below "
        "`path`; tables that come later join a running stream, with all that is in them. One that "
        "goes is an error, or with `failOnDataLoss=false` a warning."
    )
    storage: Mapping[str, str] = field(repr=False)
    fail_on_data_loss: bool
    begins_at_latest: bool
    shared: Mapping[str, str] = field(repr=False)
    """The options of each input."""
    is_consistent: bool = Option(
        "consistent",
        flag,
        Life(Change.NEXT, "which may wait until all tables have it"),
        default=False,
    ).held(
        "With `inputsPattern`, or with `inputs` and the root as `path`, where one query writes "
        "all tables (its `path` has braces): all are read at the versions of the newest batch "
        "that is whole in all of them, and a stream is never ahead of it in any. Tables that are "
        "in no batch yet do not take part. Default `false`."
    )
    """Whether all are read at one batch of the query that writes them."""
    as_of_batch: int | None = Option("asOfBatch", at_least(0), BATCH).held(
        "Batch: the same at an earlier batch of that query, by its number."
    )
    """Its number, if it is not the newest."""
    named: Mapping[str, str] = field(default_factory=dict)
    """The folders of inputs that have names; none: they are found, and called by their folders."""

    @classmethod
    def of_named(
        cls, options: Options, shared: Mapping[str, str], paths: Mapping[str, str]
    ) -> DiscoveryOptions:
        """Check the options of named inputs that are read at one batch.

        Parameters
        ----------
        paths : mapping of str to str
            Where each input lies, by its name.

        Raises
        ------
        OptionError
            One does not lie below the root, which is the ``path``.
        """
        _refuse_what_is_not_consistent(options)
        root = options.path().rstrip("/")
        below = {name: path.strip().rstrip("/") for name, path in paths.items()}
        for name, path in below.items():
            if not path.startswith(f"{root}/"):
                raise OptionError(
                    f"the input '{name}' lies at '{path}', and not below '{root}': inputs are read "
                    "at one batch only where one query writes them below one root.",
                    hint=f"give the root as 'path', and 'input.{name}.path' = '{root}/...'.",
                    option=f"input.{name}.path",
                )
        return cls(
            root=options.path(),
            pattern=Pattern(("*",)),
            storage=options.storage,
            fail_on_data_loss=True,
            begins_at_latest=(options.text("startingVersion") or "").lower() == "latest",
            shared={name: text for name, text in shared.items() if fold(name) != "path"},
            is_consistent=True,
            as_of_batch=options.number("asOfBatch"),
            named={
                name: unquote(folder) if ":/" in root else folder
                for name, folder in ((name, path[len(root) + 1 :]) for name, path in below.items())
            },
        )

    @classmethod
    def parse(cls, options: Options, shared: Mapping[str, str]) -> DiscoveryOptions | None:
        """Check the options; None if no pattern is given.

        Parameters
        ----------
        shared : mapping
            The options of the query that the read of a table knows.
        """
        pattern = _pattern(options, "inputsPattern")
        if pattern is None:
            return None
        options.refuse_together("inputsPattern", "inputs")
        options.refuse(
            "metadata",
            "has no meaning beside 'inputsPattern': it is of one table",
            hint="drop 'inputsPattern', and give the 'path' of the table.",
        )
        as_of_batch = options.number("asOfBatch")
        is_consistent = options.flag("consistent", default=as_of_batch is not None)
        if is_consistent:
            _refuse_what_is_not_consistent(options)
        elif as_of_batch is not None:
            raise OptionError.conflict("consistent=false", "asOfBatch")
        return cls(
            root=options.path(),
            pattern=pattern,
            storage=options.storage,
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            begins_at_latest=(options.text("startingVersion") or "").lower() == "latest",
            shared={name: text for name, text in shared.items() if fold(name) != "path"},
            is_consistent=is_consistent,
            as_of_batch=as_of_batch,
        )

    def told(self, name: str, *, joins: bool = False) -> dict[str, str]:
        """Return what is said of the table at a path below the root, beside `shared`.

        Parameters
        ----------
        joins : bool
            Whether it came when the stream had begun: what is in it then is new, too.
        """
        told = {"path": path_below(self.root, self.named.get(name, name))}
        if joins and self.begins_at_latest:
            told["startingVersion"] = "earliest"
        return told


def _refuse_what_is_not_consistent(options: Options) -> None:
    """Refuse what would read a table elsewhere than at the batch, or leave some of it out."""
    for name in ("versionAsOf", "timestampAsOf", "endingVersion", "endingTimestamp"):
        if options.text(name) is not None:
            raise OptionError.conflict(
                "consistent",
                name,
                why="the batch says at which version each table is read",
                hint="drop one of them; an earlier batch is read by 'asOfBatch'.",
            )
    if not options.flag("failOnDataLoss", default=True):
        raise OptionError.conflict(
            "consistent",
            "failOnDataLoss=false",
            why="a read that leaves out what is lost has not the same batch of all tables",
            hint="drop one of them.",
        )
