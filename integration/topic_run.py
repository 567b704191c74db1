"""A thousand topics of a real broker into a table each, under kills; then each table is compared.

    python integration/topic_run.py --topics 1000 --minutes 10 --rate 200000 --kills 6

Messages come at a steady rate, evenly to all topics. Meanwhile the query's driver is killed, with
its Java and its Python workers, and started again; topics are made that were not there; some
topics gain a column, and the schema of one is broken for good, so that its table is parked. Behind
the last message the query goes on until it has them all. Then each table must hold what its
messages amount to, and have counted each message once. Prints figures, and fails if one is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # Started as a program, from anywhere.

import psutil  # noqa: E402 - needs the path
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient  # noqa: E402
from confluent_kafka.cimpl import NewTopic  # noqa: E402

from integration.chaos import kill_tree, started, tree  # noqa: E402
from integration.environ import environment, from_checkout  # noqa: E402
from integration.servers.kafka import Broker, running_broker  # noqa: E402
from integration.topics import PATTERN, Topic, told  # noqa: E402
from spark_upsert.errors import TableNotFoundError  # noqa: E402
from spark_upsert.table.state.reduce import Counters  # noqa: E402
from spark_upsert.table.table import Table  # noqa: E402

SLICE_SECONDS = 0.05
TOPICS_AT_ONCE = 200
CATCH_UP_SECONDS = 3600
"""What has not all messages so long behind the last one hangs."""

BROKER_HEAP = "1g"
BROKER_SETTINGS = {
    # Two files are mapped for each segment, and a thousand partitions have as many.
    "log.index.size.max.bytes": str(1 << 20),
    "log.segment.bytes": str(64 << 20),
    "log.cleaner.enable": "false",
    "num.io.threads": "4",
    "num.network.threads": "2",
}


@dataclass
class Load:
    """Sends messages at a steady rate."""

    topics: list[Topic]
    late: list[Topic]
    """Those that are made on the way, one after the other."""
    seed: int
    rate: float
    """Messages in a second."""
    seconds: float
    broker: str
    count: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Send until the time is over, and wait until the broker has all of it."""
        producer = Producer(
            {
                "bootstrap.servers": self.broker,
                # Not idempotent: over a thousand topics it has reported messages as delivered that
                # the broker did not have. One request at a time keeps their order all the same.
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": 50,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        dice = random.Random(self.seed)
        admin = AdminClient({"bootstrap.servers": self.broker})
        begin = time.monotonic()
        poisoned = self.topics[0]
        while (passed := time.monotonic() - begin) < self.seconds and not self.failures:
            share = passed / self.seconds
            self._change(admin, share, poisoned)
            while self.count < self.rate * passed:
                topic = self.topics[dice.randrange(len(self.topics))]
                key, value = topic.message(dice, self.count)
                producer.produce(topic.name, value, key, on_delivery=self._delivered)
                self.count += 1
            producer.poll(0)
            time.sleep(SLICE_SECONDS)
        left = producer.flush(120)
        if left:
            self.failures.append(f"{left} messages were not sent")
        self._require_arrived()
        self.is_over.set()

    def _require_arrived(self) -> None:
        """See that the broker has what was sent: else the model is wrong, and not the tables."""
        consumer = Consumer({"bootstrap.servers": self.broker, "group.id": "counts"})
        for topic in self.topics:
            _, count = consumer.get_watermark_offsets(TopicPartition(topic.name, 0), timeout=60)
            if count != len(topic.sent):
                self.failures.append(f"the broker has {count} of {len(topic.sent)} {topic.name}")
        consumer.close()

    def _change(self, admin: AdminClient, share: float, poisoned: Topic) -> None:
        """Make what is due: new topics all along, from a third on another schema."""
        is_later = share > 1 / 3
        if is_later and not self._is_later:
            self._is_later = True
            poisoned.is_poisoned = self.poisons
            for topic in self.topics[1:]:
                topic.is_later = True
        while self.late and share > (self._made + 1) / (self._made + len(self.late) + 1):
            topic = self.late.pop(0)
            topic.is_later = is_later
            make_topics(admin, [topic])
            self.topics.append(topic)
            self._made += 1

    poisons: bool = True
    _made: int = 0
    _is_later: bool = False

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self.failures.append(str(error))


def make_topics(admin: AdminClient, topics: list[Topic]) -> None:
    """Make topics of one partition, and wait until they are there."""
    for start in range(0, len(topics), TOPICS_AT_ONCE):
        new = [NewTopic(t.name, 1, 1) for t in topics[start : start + TOPICS_AT_ONCE]]
        for made in admin.create_topics(new, operation_timeout=60).values():
            made.result(120)


@dataclass
class Driver:
    """The query's process, which is started again and again."""

    folder: Path
    broker: str
    environ: Mapping[str, str]
    starts: int = 0
    memory_bytes_max: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting for it."""
        self.starts += 1
        (self.folder / "started").unlink(missing_ok=True)
        log = self.folder / f"driver.{self.starts}.log"
        told = (str(self.folder), self.broker)
        self.process = started("integration.topics", *told, environ=self.environ, log=log)

    def kill(self) -> None:
        """Kill it, and all that it started."""
        if self.process is not None:
            kill_tree(self.process.pid)
            self.process.wait()
            self.process = None

    def look(self) -> None:
        """Note how much memory it has; raises what it has failed with."""
        assert self.process is not None
        if self.process.poll() is not None:
            log = self.folder / f"driver.{self.starts}.log"
            raise AssertionError(f"the query ended:\n{log.read_text(errors='replace')[-6000:]}")
        used = 0
        for each in tree(self.process.pid):
            try:
                used += psutil.Process(each.pid).memory_info().rss
            except psutil.NoSuchProcess:
                continue
        self.memory_bytes_max = max(self.memory_bytes_max, used)


@dataclass
class Run:
    """The whole of it."""

    folder: Path
    given: argparse.Namespace
    kills: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        count, new = self.given.topics, self.given.new
        topics = [Topic(number) for number in range(count + new)]
        self.load = Load(
            topics[:count],
            topics[count:],
            self.given.seed,
            self.given.rate / 60,
            self.given.minutes * 60,
            "",
            poisons=not self.given.sound,
        )
        self.all = topics

    def live(self, broker: Broker, environ: Mapping[str, str]) -> None:
        """Make topics, send messages, kill, and wait until the query has all."""
        begin = time.monotonic()
        make_topics(AdminClient({"bootstrap.servers": broker.address}), self.load.topics)
        say(f"{len(self.load.topics)} topics after {time.monotonic() - begin:.0f} s")
        self.load.broker = broker.address
        driver = Driver(self.folder, broker.address, environ)
        dice = random.Random(self.given.seed + 1)
        span = self.load.seconds
        # Spread over the time, but for its very start, where there would be nothing to repeat.
        part = 0.9 * span / max(1, self.given.kills)
        due = [0.1 * span + part * (n + dice.random()) for n in range(self.given.kills)]
        with ThreadPoolExecutor(1) as pool:
            driver.start()
            try:
                sender = pool.submit(self.load.run)
                begin = time.monotonic()
                while not self.load.is_over.wait(0.5):
                    if sender.done():
                        sender.result()
                    driver.look()
                    passed = time.monotonic() - begin
                    if due and passed > due[0]:
                        due.pop(0)
                        driver.kill()
                        self.kills.append(passed)
                        say(f"kill {len(self.kills)} after {passed:.0f} s, {self.batches} batches")
                        driver.start()
                sender.result()
                assert not self.load.failures, self.load.failures[:3]
                self._catch_up(driver)
            finally:
                driver.kill()
                self.load.failures.append("it is over")
        self.memory_bytes_max = driver.memory_bytes_max

    def _catch_up(self, driver: Driver) -> None:
        """Wait until the group has a batch with all messages."""
        begin = time.monotonic()
        self.behind = self.load.count - self._arrived()
        say(f"{self.load.count:,} messages are sent; {self.behind:,} are not in a table yet")
        while (arrived := self._arrived()) < self.load.count:
            driver.look()
            assert time.monotonic() - begin < CATCH_UP_SECONDS, f"{arrived:,} arrived"
            time.sleep(1)
        self.catch_up_seconds = time.monotonic() - begin

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def batches(self) -> int:
        """How many batches all tables have."""
        return len(self._group())

    def _group(self) -> list[dict[str, Any]]:
        """Return the row of each whole batch, which the group's changes tell; reads what is new."""
        try:
            table = Table.open(str(self.lake / "_group"))
        except TableNotFoundError:
            return self._whole
        upper = table.log.head().upper
        if upper > self._seen:
            changes = table.changes(self._seen, upper, emit_unchanged=True)
            is_after = pc.is_in(
                changes["_change_type"], value_set=pa.array(["insert", "update_postimage"])
            )
            batches = changes.filter(pc.and_(pc.equal(changes["folder"], ""), is_after))
            self._whole += batches.select(["batch", "rows"]).to_pylist()
            self._seen = upper
        return self._whole

    _seen: int = 0
    _whole: list[dict[str, Any]] = field(default_factory=list)

    def _arrived(self) -> int:
        return sum(row["rows"] for row in self._group())

    def check(self) -> dict[str, Any]:
        """Compare each table with its model; returns figures."""
        parked = parked_rows(self.lake)
        rows = deletes = versions = files = 0
        wrong = []
        for topic in self.all:
            path = self.lake / topic.name
            count = 0
            found: dict[int, dict[str, Any]] = {}
            if path.exists():
                table = Table.open(str(path))
                upper = table.log.head().upper
                for commit in table.log.commits(0, upper):
                    if commit.is_epoch:
                        count += Counters.from_json(commit.counters).rows
                found = {
                    row["id"]: {name: v for name, v in row.items() if v is not None}
                    for row in table.snapshot().to_pylist()
                }
                versions += upper
                files += sum(1 for _ in (path / "data").glob("*"))
            expected = topic.table_after(count)
            missing = len(topic.sent) - count - parked.get(topic.name, 0)
            is_parked_rightly = topic.is_poisoned == bool(parked.get(topic.name))
            if missing or found != expected or not is_parked_rightly:
                wrong.append(
                    f"{topic.name}: {missing} messages missing, rows equal: "
                    f"{found == expected}, parked: {parked.get(topic.name, 0)}"
                )
            rows += len(found)
            deletes += sum(row is None for _, row in topic.sent)
        assert not wrong, f"{len(wrong)} tables are wrong:\n" + "\n".join(wrong[:10])
        numbers = [row["batch"] for row in self._group()]
        assert numbers == list(range(len(numbers))), f"the group has the batches {numbers}"
        batches = list(told(self.folder))
        times = sorted(each["ms"]["triggerExecution"] / 1000 for each in batches)
        return {
            "topics": len(self.all),
            "messages": self.load.count,
            "deletes": deletes,
            "messages a minute": round(self.load.count / self.given.minutes),
            "kills": len(self.kills),
            "batches": len(numbers),
            "seconds of a batch, median": round(statistics.median(times), 1) if times else None,
            "seconds of a batch, longest": round(times[-1], 1) if times else None,
            "rows of a batch, largest": max((each["rows"] for each in batches), default=None),
            "behind at the last message": self.behind,
            "seconds to catch up": round(self.catch_up_seconds),
            "memory of the query, MiB": self.memory_bytes_max >> 20,
            "rows in tables": rows,
            "versions": versions,
            "files": files,
            "parked": sum(parked.values()),
            "lost": 0,
            "doubled": 0,
        }


def parked_rows(lake: Path) -> dict[str, int]:
    """Return how many rows are parked, by folder."""
    try:
        table = Table.open(str(lake / "_parked"))
    except TableNotFoundError:
        return {}
    found: dict[str, int] = {}
    for row in table.snapshot().to_pylist():
        found[row["folder"]] = found.get(row["folder"], 0) + row["rows"]
    return found


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


@contextmanager
def folder_of(given: Path | None) -> Iterator[Path]:
    """Return the folder that was asked for, which stays, or one that goes."""
    if given is not None:
        given.mkdir(parents=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="upsertflow-topics-") as name:
        yield Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--topics", type=int, default=1000, help=f"that match {PATTERN}")
    parser.add_argument("--new", type=int, default=20, help="topics that are made on the way")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=200_000, help="messages a minute")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sound", action="store_true", help="poison no topic")
    parser.add_argument("--keep", type=Path, help="a folder that stays, for a look behind it")
    given = parser.parse_args()
    say(" ".join(f"{name}={value}" for name, value in vars(given).items()))
    environ = from_checkout(environment())
    with folder_of(given.keep) as folder:
        run = Run(folder, given)
        broker = running_broker(
            folder / "broker", environ, heap=BROKER_HEAP, settings=BROKER_SETTINGS
        )
        with broker as server:
            run.live(server, environ)
        say(json.dumps(run.check(), indent=2))


if __name__ == "__main__":
    main()
