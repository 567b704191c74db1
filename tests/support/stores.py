"""A store in memory, and one that fails at a chosen step.

A step is one call that a network or a disk would see: a read, a put, the opening of a sink,
each write to it, its close, a listing, a delete. A fault strikes *before* its step took
effect or *after* it, and is either an error, which the code may handle, or a kill, after
which the process does nothing any more. A sink that is killed leaves its file torn.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any

import pyarrow as pa

from spark_upsert.delta.follow import MIRRORS
from spark_upsert.errors import CorruptionError
from spark_upsert.store import ObjectInfo, ObjectSink, Store
from spark_upsert.store.protocol import OBJECT_BYTES_MAX, MappedFile
from spark_upsert.streams.reads.views import TASKS as VIEWS
from spark_upsert.table.log.reader import LOGS
from spark_upsert.table.run.file import RUNS

_NUMBERS = itertools.count()


NEVER_S = 4_000_000_000.0
"""The one time that a store without a clock knows: no clock is ahead of it, all files are new."""


class MemoryStore:
    """Objects in a dictionary; each store has a root of its own, if it is given none."""

    are_far = False
    """Whether what is mapped would be copied first, as that of a bucket."""

    def __init__(self, url: str | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._url = url or f"memory:///{next(_NUMBERS)}"

    @property
    def url(self) -> str:
        return self._url

    @property
    def cache_key(self) -> Hashable | None:
        """Return None: whoever opens it is a process that remembers nothing."""
        return None

    def __repr__(self) -> str:
        return f"MemoryStore(objects={len(self.objects)})"

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        try:
            data = self.objects[path]
        except KeyError:
            raise FileNotFoundError(path) from None
        if len(data) > bytes_max:
            raise CorruptionError.in_file(path, f"at most {bytes_max} bytes", f"{len(data)}")
        return data

    def prepare(self, folder: str) -> None:
        """Do nothing: there are no folders."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with self._lock:
            if path in self.objects:
                return False
            self.objects[path] = data
            return True

    def sync(self, path: str) -> None:
        assert path in self.objects

    def put(self, path: str, data: bytes) -> None:
        self.objects[path] = data

    def create(self, path: str) -> MemorySink:
        assert path not in self.objects, f"{path} is not a new name"
        return MemorySink(self, path)

    def fetch(self, sizes: Mapping[str, int]) -> None:
        """Do nothing: objects are near."""

    def map(self, path: str) -> pa.Buffer:
        return pa.py_buffer(self.read(path))

    def needs_fetch(self, path: str) -> bool:
        return self.are_far

    def reserve(self, size: int) -> bool:
        return True

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]], size: int) -> Sequence[Any]:
        data = self.read(path, bytes_max=len(self.objects.get(path, b"")))
        return [data[low:high] for low, high in ranges]

    def mapped_file(self, path: str) -> MappedFile | None:
        """Return None: no file is mapped."""
        return None

    def release(self, buffer: pa.Buffer) -> None:
        """Do nothing: no file is mapped."""

    def forget(self, path: str) -> None:
        """Do nothing: there is no copy."""

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        for path in sorted(self.objects):
            if path.rpartition("/")[0] == prefix and path > after:
                yield ObjectInfo(path=path, bytes=len(self.objects[path]), modified_s=NEVER_S)

    def folders(self, prefix: str) -> Iterator[str]:
        above = f"{prefix}/" if prefix else ""
        below = [path[len(above) :] for path in self.objects if path.startswith(above)]
        yield from sorted({path.partition("/")[0] for path in below if "/" in path})

    def temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(())

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)


class FarStore(MemoryStore):
    """The objects of another store, as a machine sees them that has none of them."""

    are_far = True

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.objects = objects


class MemorySink:
    """A file that grows under its name, and is removed if an error interrupts it."""

    def __init__(self, store: MemoryStore, path: str) -> None:
        self._store = store
        self._path = path
        store.objects[path] = b""

    def write(self, data: bytes) -> int:
        self._store.objects[self._path] += bytes(data)
        return len(data)

    def __enter__(self) -> MemorySink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._store.delete(self._path)


class KilledError(BaseException):
    """The process is gone. Derived as `KeyboardInterrupt` is, so that no code handles it."""


class BrokenError(OSError):
    """An I/O error that the process survives."""


class Moment(Enum):
    """When a fault strikes."""

    BEFORE = "before its effect"
    AFTER = "after its effect"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at one step. Steps count from 0."""

    step: int
    moment: Moment
    kind: type[BaseException] = KilledError

    def __str__(self) -> str:
        return f"{self.kind.__name__} at step {self.step}, {self.moment.value}"


class Steps:
    """Counts steps and strikes at the chosen one; a killed process stays dead.

    ``watch`` is called behind each step, as another process that looks at that moment.
    """

    def __init__(
        self, fault: Fault | None = None, *, watch: Callable[[], None] | None = None
    ) -> None:
        self.begin_anew(fault, watch=watch)

    def begin_anew(
        self, fault: Fault | None = None, *, watch: Callable[[], None] | None = None
    ) -> None:
        """Count from 0 on, for stores that are open, too."""
        self._fault = fault
        self._watch = watch
        self.names: list[str] = []
        self.is_dead = False

    @property
    def struck(self) -> bool:
        """Whether the fault has happened."""
        return self._fault is not None and len(self.names) > self._fault.step

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run the body as one step."""
        if self.is_dead:
            raise KilledError(name)
        fault = self._fault if self._fault and self._fault.step == len(self.names) else None
        self.names.append(name)
        if fault and fault.moment is Moment.BEFORE:
            self._strike(fault, name)
        try:
            yield
        finally:  # An answer like "not found" is an effect, too.
            if self._watch:
                self._watch()
            if fault and fault.moment is Moment.AFTER:
                self._strike(fault, name)

    def _strike(self, fault: Fault, name: str) -> None:
        self.is_dead = fault.kind is KilledError
        raise fault.kind(f"{fault}: {name}")


def is_place(steps: Sequence[str], step: int) -> bool:
    """Return whether a step is another than the one before it, and not one more write to a file."""
    return not steps[step].startswith("write ") or steps[step - 1] != steps[step]


class FaultyStore:
    """A store that passes each step on, except for the one that fails.

    Who gives the name of a process shares its memory with all that give the same.
    """

    def __init__(self, store: Store, steps: Steps, *, process: Hashable | None = None) -> None:
        self._store = store
        self._steps = steps
        self._process = process

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def cache_key(self) -> Hashable | None:
        return self._store.cache_key if self._process is None else (self.url, self._process)

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        with self._steps.step(f"read {path}"):
            return self._store.read(path, bytes_max=bytes_max)

    def prepare(self, folder: str) -> None:
        with self._steps.step(f"prepare {folder}"):
            self._store.prepare(folder)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with self._steps.step(f"put_if_absent {path}"):
            return self._store.put_if_absent(path, data)

    def sync(self, path: str) -> None:
        with self._steps.step(f"sync {path}"):
            self._store.sync(path)

    def put(self, path: str, data: bytes) -> None:
        with self._steps.step(f"put {path}"):
            self._store.put(path, data)

    def create(self, path: str) -> FaultySink:
        with self._steps.step(f"create {path}"):
            sink = self._store.create(path)
        return FaultySink(sink, self._steps, path)

    def fetch(self, sizes: Mapping[str, int]) -> None:
        """Do nothing: which of several threads fails first could not be told."""

    def map(self, path: str) -> pa.Buffer:
        with self._steps.step(f"map {path}"):
            return self._store.map(path)

    def needs_fetch(self, path: str) -> bool:
        return self._store.needs_fetch(path)

    def reserve(self, size: int) -> bool:
        return self._store.reserve(size)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]], size: int) -> Sequence[Any]:
        with self._steps.step(f"read_ranges {path}"):
            return self._store.read_ranges(path, ranges, size)

    def mapped_file(self, path: str) -> MappedFile | None:
        return self._store.mapped_file(path)

    def release(self, buffer: pa.Buffer) -> None:
        self._store.release(buffer)

    def forget(self, path: str) -> None:
        self._store.forget(path)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        with self._steps.step(f"list {prefix}"):
            found = list(self._store.list(prefix, after=after))
        yield from found

    def folders(self, prefix: str) -> Iterator[str]:
        with self._steps.step(f"folders {prefix}"):
            found = list(self._store.folders(prefix))
        yield from found

    def temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._steps.step(f"list temporaries of {prefix}"):
            found = list(self._store.temporaries(prefix))
        yield from found

    def delete(self, path: str) -> None:
        with self._steps.step(f"delete {path}"):
            self._store.delete(path)


class FaultySink:
    """A sink whose writes and close are steps."""

    def __init__(self, sink: ObjectSink, steps: Steps, path: str) -> None:
        self._sink = sink
        self._steps = steps
        self._path = path

    def write(self, data: bytes) -> int:
        with self._steps.step(f"write {self._path}"):
            return self._sink.write(data)

    def __enter__(self) -> FaultySink:
        self._sink.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._steps.is_dead:
            return  # What was written stays behind, torn.
        if error is not None:
            self._sink.__exit__(kind, error, trace)
            return
        try:
            with self._steps.step(f"close {self._path}"):
                self._sink.__exit__(None, None, None)
        except BrokenError as broken:
            self._sink.__exit__(type(broken), broken, broken.__traceback__)
            raise


class SlowStore(FaultyStore):
    """A bucket in which puts of versions are under way, while their callers have given up."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Steps())
        self.is_slow = False
        self._under_way: list[tuple[str, bytes]] = []

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if not self.is_slow:
            return super().put_if_absent(path, data)
        self._under_way.append((path, data))
        raise BrokenError(f"no answer to the put of {path}")

    def land(self) -> list[bool]:
        """Let the puts take effect, in their order; returns for each whether it has created."""
        landed, self._under_way = self._under_way, []
        return [self._store.put_if_absent(*put) for put in landed]


def forget_runs_and_logs() -> None:
    """Close all runs and remember no log, as the end of the process would."""
    RUNS._runs.clear()
    LOGS.clear()
    VIEWS._idle.clear()
    MIRRORS.clear()
