"""A child of the test's process, made by `os.fork`."""

import gc
import os
import select
import traceback
from collections.abc import Callable

# For a child that hangs: it is killed, and the test fails.
PATIENCE_S = 30


def in_child(work: Callable[[], str]) -> str:
    """The result of ``work`` in a child. Fails with the child's traceback when it raises, and when it hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing of the parent's is unwound here: `os._exit` runs no handlers and no finalizers, and what other tests
        # have left is not collected. Objects of gRPC would look for their threads, which only the parent has.
        gc.freeze()
        try:
            text = "+" + work()
        except BaseException:
            text = "-" + traceback.format_exc()
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    status = 0
    try:
        text = _read_all(reading, child)
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
    # A child that crashes has written nothing: its exit code is minus the signal's number.
    ending = f"exit code {os.waitstatus_to_exitcode(status)}"
    assert text.startswith("+"), f"in the child: {text[1:] or ending}"
    return text[1:]


def _read_all(reading: int, child: int) -> str:
    parts = []
    # `select.select` takes no descriptors above 1,023.
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while True:
        if not poll.poll(PATIENCE_S * 1_000):
            os.kill(child, 9)
            return f"-no end after {PATIENCE_S} s"
        part = os.read(reading, 65_536)
        if not part:
            return b"".join(parts).decode()
        parts.append(part)
