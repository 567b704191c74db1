"""Small odd git repositories, made by one real git process each (``git fast-import``)."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FILE, PROGRAM, LINK, SUBMODULE = "100644", "100755", "120000", "160000"

ODD_PATHS = (
    b"plain.txt",
    b"with space and 'quotes' \".txt",
    b"new\nline\ttab\r\\backslash",
    b":100644 looks like a record",
    b"-r",
    b"100%",
    b"100%25",
    "caf\u00e9/\u65e5\u672c/\U0001f40d.py".encode(),
    "cafe\u0301".encode(),  # The same to the eye, other bytes.
    b"caf\xe9",
    b"caf%E9",
    b"\xff\xfe/\x80",
    b"\xed\xa0\x80",  # A surrogate, which UTF-8 forbids.
    b"\x01\x7f",
)
"""Paths that git allows, and that some program has got wrong."""


@dataclass(frozen=True, slots=True)
class Put:
    """Set a path; of a submodule, the content is the commit's id."""

    content: bytes
    mode: str = FILE


Entry = Put | None
"""None removes the path."""


@dataclass
class Builder:
    """Collects commits and makes a repository of them.

    >>> builder = Builder()
    >>> root = builder.commit({b"a": Put(b"1")})
    >>> builder.commit({b"a": None}, parents=[root])
    2
    """

    _stream: list[bytes] = field(default_factory=list)
    _count: int = 0

    def commit(self, entries: Mapping[bytes, Entry], parents: Sequence[int] | None = None) -> int:
        """Add a commit to the branch; returns its number.

        Parameters
        ----------
        entries : mapping of bytes to Put or None
            What it does to its first parent.
        parents : sequence of int, optional
            Numbers of commits; by default the one before.
        """
        if parents is None:
            parents = [self._count] if self._count else []
        self._count += 1
        lines = [
            b"commit refs/heads/main",
            b"mark :%d" % self._count,
            b"committer Ada <ada@example.org> %d +0000" % (1_700_000_000 + self._count),
            b"data 0",
        ]
        # Without it, fast-import continues the branch.
        lines += [b"from :%d" % p for p in parents[:1]] or [b"from " + b"0" * 40]
        lines += [b"merge :%d" % p for p in parents[1:]]
        # Removals first: a path may make room for a folder of its name.
        for path, entry in sorted(entries.items(), key=lambda item: item[1] is not None):
            if entry is None:
                lines.append(b"D " + _quoted(path))
            elif entry.mode == SUBMODULE:
                lines.append(b"M 160000 " + entry.content + b" " + _quoted(path))
            else:
                lines.append(b"M %s inline %s" % (entry.mode.encode(), _quoted(path)))
                lines.append(b"data %d\n%s" % (len(entry.content), entry.content))
        self._stream += lines
        return self._count

    def write(self, folder: Path, *, bare: bool = False) -> Path:
        """Make the repository; HEAD is the commit added last. A small one has loose objects."""
        git(folder.parent, "init", "--quiet", *(["--bare"] if bare else []), str(folder))
        git(folder, "symbolic-ref", "HEAD", "refs/heads/main")
        if self._stream:
            git(folder, "fast-import", "--quiet", "--force", stdin=b"\n".join(self._stream) + b"\n")
        return folder


def _quoted(path: bytes) -> bytes:
    return b'"' + b"".join(b"\\%03o" % byte for byte in path) + b'"'


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run git as if this machine had no settings."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        input=stdin,
        check=True,
        capture_output=True,
        env=environment,
    )
    return done.stdout


def odd_history() -> Builder:
    """Return one of each: paths, modes, links, submodules, renames, merges, nothing at all."""
    builder = Builder()
    builder.commit({})
    builder.commit({path: Put(b"%d" % i) for i, path in enumerate(ODD_PATHS)})
    builder.commit({ODD_PATHS[0]: None, b"renamed.txt": Put(b"0")})
    builder.commit({b"renamed.txt": Put(b"0", PROGRAM)})
    builder.commit({b"renamed.txt": Put(b"-r", LINK)})
    builder.commit({b"module": Put(b"1" * 40, SUBMODULE)})
    builder.commit({b"module": Put(b"2" * 40, SUBMODULE)})
    fork = builder.commit({})
    side = builder.commit({b"side": Put(b"1"), b"both": Put(b"side")}, parents=[fork])
    side = builder.commit({b"side": Put(b"2")}, parents=[side])
    own = builder.commit({b"both": Put(b"own")}, parents=[fork])
    builder.commit({b"side": Put(b"2"), b"both": Put(b"")}, parents=[own, side])
    builder.commit({b"module": None, b"module/now/a folder": Put(b"3")})
    builder.commit({b"module/now/a folder": None, b"module": Put(b"a file")})
    builder.commit({b"-r": None})
    builder.commit({b"-r": Put(b"back")})
    builder.commit({})
    return builder


def long_history(commit_count: int, *, seed: int = 7) -> Builder:
    """Return the odd history and then random commits over few paths, some of them empty."""
    chance = random.Random(seed)
    builder = odd_history()
    paths = [*ODD_PATHS, *(b"src/%d.py" % i for i in range(40))]
    there = set(ODD_PATHS[1:])
    for number in range(commit_count):
        entries: dict[bytes, Entry] = {}
        for path in chance.sample(paths, chance.randint(0, 4)):
            if path in there and chance.random() < 0.3:
                entries[path] = None
                there.discard(path)
            else:
                mode = chance.choice([FILE, FILE, PROGRAM, LINK])
                entries[path] = Put(b"%d" % number * chance.randint(1, 9), mode)
                there.add(path)
        builder.commit(entries)
    return builder
