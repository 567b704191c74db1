"""A schema registry: Apicurio's, which answers as Confluent's does, with its memory as its store."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.servers.install import fetched
from integration.servers.kafka import java
from integration.servers.server import Program, Server, free_port, running

VERSION = "2.6.13.Final"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
MAIN = "io.quarkus.runner.GeneratedMain"
ANSWERS = "/apis/ccompat/v7"
"""Below this it has Confluent's interface."""


@dataclass(frozen=True)
class Registry:
    """A registry, and what a test may do to it."""

    url: str
    server: Server

    def register(
        self,
        subject: str,
        schema: Any,
        kind: str = "AVRO",
        references: Sequence[tuple[str, str, int]] = (),
    ) -> int:
        """Add a version of a subject; returns the id of the schema."""
        names = ("name", "subject", "version")
        body = {
            "schema": json.dumps(schema),
            "schemaType": kind,
            "references": [dict(zip(names, each, strict=True)) for each in references],
        }
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            json.dumps(body).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])

    def wait(self) -> None:
        """Wait until it answers."""

        def ask() -> None:
            urllib.request.urlopen(f"{self.url}/subjects", timeout=5).close()

        self.server.wait_until(ask)


def _home() -> Path:
    return fetched(
        f"apicurio-{VERSION}",
        "mvn",
        "install Maven (Debian: `apt install maven`).",
        *("--batch-mode", "--quiet", "dependency:unpack", f"-Dartifact={ARTIFACT}"),
        "-DoutputDirectory={}",
        files={},
    )


@contextmanager
def running_registry(folder: Path, environ: Mapping[str, str]) -> Iterator[Registry]:
    """Start an empty registry. Of this one there is no container."""
    folder.mkdir(parents=True)
    port = free_port()
    settings = {"quarkus.http.host": "127.0.0.1", "quarkus.http.port": str(port)}

    def command() -> list[str]:
        home = _home()
        given = [f"-D{name}={value}" for name, value in settings.items()]
        return [*java(), *given, "-cp", f"{next(home.glob('*.jar'))}:{home}/lib/*", MAIN]

    program = Program(
        name="the schema registry",
        log=folder / "registry.log",
        command=command,
        environ=environ,
    )
    with running(program) as server:
        registry = Registry(f"http://127.0.0.1:{port}{ANSWERS}", server)
        registry.wait()
        yield registry
