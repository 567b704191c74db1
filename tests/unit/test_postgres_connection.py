"""Passwords from commands, without a server."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from spark_upsert.errors import StorageError
from spark_upsert.postgres import connection
from spark_upsert.postgres.connection import Address

SECRET = "HUSHhush0123"


def command(code: str) -> str:
    return shlex.join([sys.executable, "-c", f"import sys, threading; {code}"])


def test_the_command_is_run_for_each_connection(tmp_path: Path) -> None:
    token = tmp_path / "token"
    address = Address("host=db", command(f"print(open({str(token)!r}).read())"))
    for password in ("one", " two = '\"$HOME"):
        token.write_text(password)
        assert address.password() == {"password": password}
    assert Address("host=db").password() == {}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (command(f"print('{SECRET}'); sys.exit('{SECRET}')"), "ended with exit code 1"),
        (command(f"sys.exit(3) or '{SECRET}'"), "exit code 3"),
        (command(f"print() or '{SECRET}'"), "exit code 0 and printed nothing"),
        (f"/no/such/program {SECRET}", "cannot be run"),
        (f"'{SECRET}", "cannot be run"),
        ("", "cannot be run"),
        (
            command(f"print('{SECRET}', flush=True); threading.Event().wait()"),
            "did not end within 0.5 sec",
        ),
    ],
)
def test_a_command_that_fails_is_an_error_without_its_text_and_its_output(
    given: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_COMMAND_SECONDS", 0.5)
    address = Address(f"host=db password={SECRET}", given)
    with pytest.raises(StorageError, match=problem) as caught:
        address.password()
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error!r} {error} {caught.value.hint}"
        error = error.__cause__ or error.__context__
    assert SECRET not in repr(address)
