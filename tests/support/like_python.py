"""A program that runs like Python, or like a console script, in a fork of a process that has imported modules.

`WarmDaemons.begin` in warm_daemons.py writes it, with a call of `main` at the end. It asks that process for a fork with
its own arguments, environment, folder, input and outputs, passes signals on, and ends as the fork does. When it is
killed, so is the fork. It imports only what is built in: its start should take less time than the fork.
"""

import _signal  # type: ignore[import-not-found]  # built in, but typeshed leaves it out
import _socket
import marshal
import os
import sys

MAX_BYTES = 1 << 17
PASSED_ON = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)


def main(python: str, address: str) -> None:
    """``python``: what runs code of the command line. ``address``: where the process that forks listens."""
    name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
    if name == "python" and (not arguments or (arguments[0] != "-m" and arguments[0].startswith("-"))):
        os.execv(python, [python, *arguments])
    asked = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    asked.connect(address)
    what = marshal.dumps(([name, *arguments], dict(os.environ), os.getcwd(), False))
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    asked.sendmsg([what], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])

    def pass_on(number: int, frame: object) -> None:
        asked.send(b"%d" % number)

    for number in PASSED_ON:
        if _signal.getsignal(number) is not _signal.SIG_IGN:
            _signal.signal(number, pass_on)
    # The name of this process tells which process is its fork.
    fork = asked.recv(MAX_BYTES)
    with open("/proc/self/comm", "wb") as name:
        name.write(fork)
    exit_code = int(asked.recv(MAX_BYTES))
    if exit_code < 0:
        if -exit_code in PASSED_ON:
            _signal.signal(-exit_code, _signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code)
