"""An S3 server for tests: moto behind a lock, on a free loopback port, in a process of its own.

moto checks ``If-None-Match`` and then stores, in two steps, so that two threads of its server
can both find a key absent. `_OneAtATime` gives the server what S3 promises: every request is
atomic and they have one order. Signatures and keys are verified, as S3 does: over the query in
its canonical form, where moto takes it as it was sent (a ``+`` for a space, ``%7E`` for ``~``).

What moto lacks, so that tests here say nothing about it: conditions and resources in policies,
throttling, and ``409 ConditionalRequestConflict``; `tests.support.proxy` plays the last two.

The variables ``UPSERTFLOW_TEST_S3_ENDPOINT``, ``..._KEY`` and ``..._SECRET`` put another server
in its place. MinIO, for example, decides races in its own way.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, quote
from uuid import uuid4

_ENVIRONMENT = "UPSERTFLOW_TEST_S3_"
_REGION = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3:
    """A running server, and an identity that may do everything on it."""

    endpoint: str
    access_key_id: str
    secret_access_key: str

    @property
    def storage(self) -> dict[str, str]:
        """The options of a table on this server."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "region": _REGION,
            "allow_http": "true",
        }

    def behind(self, endpoint: str) -> S3:
        """Return the same server, reached by another address."""
        return replace(self, endpoint=endpoint)

    def client(self, service: str = "s3") -> Any:
        """Return a client of another make, to look at the server without our code."""
        import boto3  # type: ignore[import-untyped]  # comes with moto

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            region_name=_REGION,
        )

    def new_bucket(self) -> str:
        """Make an empty bucket; returns its name."""
        name = f"test-{uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> list[str]:
        """Return the keys in a bucket, sorted."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))


@contextmanager
def running_s3() -> Iterator[S3]:
    """Start a server and stop it at the end, or use the one that the environment names."""
    if f"{_ENVIRONMENT}ENDPOINT" in os.environ:
        yield S3(
            endpoint=os.environ[f"{_ENVIRONMENT}ENDPOINT"],
            access_key_id=os.environ[f"{_ENVIRONMENT}KEY"],
            secret_access_key=os.environ[f"{_ENVIRONMENT}SECRET"],
        )
        return
    # A file and not `-m`: the child needs only moto. `-P` keeps our modules off its path.
    with subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        port = int(process.stdout.readline())
        try:
            yield _with_identity(f"http://127.0.0.1:{port}")
        finally:
            process.stdin.close()  # The child leaves when its input ends, even if we crash.


def _with_identity(endpoint: str) -> S3:
    """Make a user, then have every request verified."""
    admin = S3(endpoint=endpoint, access_key_id="admin", secret_access_key="admin")
    iam = admin.client("iam")
    iam.create_user(UserName="tester")
    allow_all = (
        '{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"*","Resource":"*"}}'
    )
    iam.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=allow_all)
    key = iam.create_access_key(UserName="tester")["AccessKey"]
    verify_from_request_0 = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"}
    )
    urllib.request.urlopen(verify_from_request_0).close()
    return replace(
        admin, access_key_id=key["AccessKeyId"], secret_access_key=key["SecretAccessKey"]
    )


class _OneAtATime:
    """Serves one request after the other, each body read before its turn begins."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        # A slow client must not hold the lock: its body is read outside.
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = io.BytesIO(environ["wsgi.input"].read(length))
        query = _canonical(environ.get("QUERY_STRING", ""))
        own = {**environ, "wsgi.input": body, "QUERY_STRING": query}
        with self._lock:
            return list(self._application(own, start_response))


def _canonical(query: str) -> str:
    """Return a query as it is signed: of decoded names and values, each encoded in one way."""
    pairs = parse_qsl(query, keep_blank_values=True)
    return "&".join(
        f"{quote(name, safe='-_.~')}={quote(text, safe='-_.~')}" for name, text in pairs
    )


def _serve() -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    application = _OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server(
        "127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve()
