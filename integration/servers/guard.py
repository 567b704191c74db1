"""Run a program for as long as somebody holds the other end of our standard input.

    python guard.py USER COMMAND...

A test run that is killed cannot stop its servers. Its end of the pipe closes all the same, and then
this process takes the server along. USER is empty, or the user with whose rights the server runs.
"""

import os
import pwd
import signal
import subprocess
import sys
import threading
from typing import Any


def main(user: str, *command: str) -> int:
    """Run a command; returns its exit code."""
    group = pwd.getpwnam(user).pw_gid if user else None
    rights: dict[str, Any] = {"user": user, "group": group, "extra_groups": []} if user else {}
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, **rights)
    threading.Thread(target=end_with_input, daemon=True).start()
    return int(program.wait())


def end_with_input() -> None:
    """Kill all that belongs to our session when the input ends, us last."""
    sys.stdin.buffer.read()
    while members := session(os.getpid()) - {os.getpid()}:
        for pid in members:
            send(pid, signal.SIGKILL)
    send(os.getpid(), signal.SIGKILL)


def session(leader: int) -> set[int]:
    """Return the living processes of a session; a group would miss Spark's Python workers."""
    text = subprocess.run(
        ["ps", "-A", "-o", "pid=,sess=,stat="], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split() for line in text.splitlines())
    return {int(pid) for pid, own, state in rows if int(own) == leader and state[0] != "Z"}


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
