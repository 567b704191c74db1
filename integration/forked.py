"""Be what a `forkserver` forks for a command line: the interpreter that it gives to Spark.

A program of its own, with two modules that are compiled in: Spark starts it as often as it would
start Python, and what it saves is the time of imports.
"""

import _socket
import marshal
import os
import sys

ADDRESS = "address"
"""The server's socket, in the folder of the interpreter."""

NOT_MINE = b"-"
"""What the server says to a command line that it does not know."""


def ask(interpreter: str, arguments: list[str]) -> None:
    """Stay until the forked process ends, and end as it does; or become Python where none is."""
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    question = marshal.dumps((arguments, os.getcwd(), dict(os.environ)))
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    try:
        line.connect(os.path.join(os.path.dirname(interpreter), ADDRESS))
        line.sendmsg([question], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
        said = line.recv(16)
    except OSError:
        said = NOT_MINE
    if said == NOT_MINE:
        os.execv(sys.executable, [sys.executable, *arguments])
    os._exit(int(said or b"1"))


if __name__ == "__main__":
    ask(sys.argv[1], sys.argv[2:])
