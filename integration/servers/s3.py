"""An S3-compatible store whose conditional puts hold: the Versity gateway on a local disk.

It is a server that people run, with conditional writes decided by the file system (``link`` of a
finished file), where moto's (`tests.support.s3`) are decided by a lock that we put around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.servers.install import go_program
from integration.servers.server import Image, Program, free_port, running
from tests.support.s3 import S3

VERSION = "v1.8.0"
PACKAGE = "github.com/versity/versitygw/cmd/versitygw"


def gateway() -> Path:
    """Return the program."""
    return go_program("versitygw", PACKAGE, VERSION)


@contextmanager
def running_gateway(folder: Path) -> Iterator[S3]:
    """Start a gateway to folders below one; gives the identity that may do everything."""
    buckets, metadata = folder / "buckets", folder / "metadata"
    for each in (buckets, metadata):
        each.mkdir(parents=True)
    port = free_port()
    identity = {"ROOT_ACCESS_KEY": "tester", "ROOT_SECRET_KEY": "a secret of the tests"}
    # Beside the files and not in their extended attributes, which not every file system has.
    where = ["posix", "--sidecar", str(metadata), str(buckets)]
    arguments = ["--quiet", "--port", f"127.0.0.1:{port}", *where]
    program = Program(
        name="the S3 gateway",
        log=folder / "gateway.log",
        command=lambda: [str(gateway()), *arguments],
        environ={**os.environ, **identity},
        image=Image(
            name=f"versity/versitygw:{VERSION}",
            command=["/usr/local/bin/versitygw", *arguments],
            environ=identity,
            folders=[folder],
        ),
    )
    with running(program) as server:
        server.wait_for_port(port)
        yield S3(
            endpoint=f"http://127.0.0.1:{port}",
            access_key_id=identity["ROOT_ACCESS_KEY"],
            secret_access_key=identity["ROOT_SECRET_KEY"],
        )
