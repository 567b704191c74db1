"""A cache of the schema ids that a registry did not have, so that they are asked for seldom.

A payload may name any id. An id that the registry does not have is asked for once in `MISSING_S`,
so that a schema which is registered afterwards is soon found. The cache is bounded, and its bound
is one of requests, too: while `MISSING_MAX` ids of a registry are missing, further ones are not
asked for. So a batch of rows with ten thousand unregistered ids costs no more.

Rejected: to remember what is missing for as long as a process lives (a schema that came a second
later would be bad for days), and to ask for each id of a batch (ten thousand requests, batch after
batch, while the other rows of the table wait).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MISSING_S = 10.0
"""Time for which a schema counts as missing. Writers register first, so that only a lagging
follower of a registry's leader is told late."""

MISSING_MAX = 256
"""Most ids of one registry that count as missing: some 25 requests a second for absent ids."""

_OWNERS_MAX = 64


class Unasked(Exception):
    """Too many others are missing, so this one is not asked for; never leaves the engine."""


class Missing(Generic[K]):
    """Names that were asked for in vain, by owner; safe for threads.

    Parameters
    ----------
    clock : callable
        Returns seconds that only grow.
    missing : tuple of exception types
        Exceptions that say that something is missing. Others are not remembered.
    """

    def __init__(self, clock: Callable[[], float], missing: tuple[type[Exception], ...]) -> None:
        self._clock = clock
        self._missing = missing
        self._known: OrderedDict[K, OrderedDict[str, tuple[float, Exception | None]]]
        self._known = OrderedDict()
        self._lock = threading.Lock()

    def of(self, owner: K, name: str, ask: Callable[[], V]) -> V:
        """Ask for something, unless it was missing just now.

        Raises
        ------
        Unasked
            `MISSING_MAX` others of the owner are missing.
        Exception
            The error of the request; the same error again for a missing thing until it expires.
        """
        self._enter(owner, name)
        try:
            found = ask()
        except self._missing as error:
            self._note(owner, name, error)
            raise
        except BaseException:
            self._note(owner, name, None)
            raise
        self._note(owner, name, None)
        return found

    def clear(self) -> None:
        """Forget all, as a new process would."""
        with self._lock:
            self._known.clear()

    def _enter(self, owner: K, name: str) -> None:
        """Take a place before asking: those that ask at once are bounded, too."""
        now_s = self._clock()
        with self._lock:
            known = self._known.setdefault(owner, OrderedDict())
            self._known.move_to_end(owner)
            while len(self._known) > _OWNERS_MAX:
                self._known.popitem(last=False)
            while known and next(iter(known.values()))[0] <= now_s:
                known.popitem(last=False)
            _, error = known.get(name, (0.0, None))
            if error is not None:
                raise type(error)(*error.args)
            if name not in known and len(known) >= MISSING_MAX:
                raise Unasked
            known[name] = now_s + MISSING_S, None

    def _note(self, owner: K, name: str, error: Exception | None) -> None:
        until_s = self._clock() + MISSING_S
        with self._lock:
            known = self._known.setdefault(owner, OrderedDict())
            known.pop(name, None)
            if error is not None:
                known[name] = until_s, error
