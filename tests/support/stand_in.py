"""What a forked session starts in place of a Python: it has the server fork one, and is to its parent as that one is.

Its streams, folder, variables and arguments are the other's. It passes on what signals it gets, and ends as the other
ends; where it is killed, the server kills the other. It is run with the number of a socket before the arguments of
Python, and without the site's packages: to start it costs next to nothing.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main() -> int:
    """The exit code of the other."""
    asking, words = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    heard = [each for each in PASSED_ON if signal.getsignal(each) is not signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    mine, theirs = socket.socketpair()
    socket.send_fds(asking, [b"?"], [theirs.fileno()])
    theirs.close()
    group = 0 if os.getpgrp() == os.getpid() else os.getpgrp()
    about = {"words": words, "cwd": os.getcwd(), "env": dict(os.environ), "parent": os.getppid(), "group": group}
    socket.send_fds(mine, [b"!"], [0, 1, 2])
    mine.sendall(json.dumps(about).encode() + b"\n")
    with mine.makefile("rb") as answers:
        other = int(answers.readline())
        for each in heard:
            signal.signal(each, lambda number, _: pass_on(other, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
        return int(answers.readline())


def pass_on(other: int, number: int) -> None:
    """To its group, where this process leads one: then it was started to be ended with what it has started."""
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if os.getpgrp() == os.getpid() else os.kill)(other, number)


def end_as(code: int) -> None:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    end_as(main())
