"""The first thing that a console command imports, so that Ctrl-C while the rest is imported leaves no traceback."""

import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

# What a shell reports for a process that SIGINT ended.
INTERRUPTED = 130


def start(place: str, **arguments: str) -> NoReturn:
    """Import ``place`` ("module:function"), call it with ``arguments``, and exit with the code that it returns."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if not ignored:
        # The system's own way: the process ends by the signal, without a word.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    module, _, attribute = place.partition(":")
    command: Callable[..., int] = getattr(import_module(module), attribute)
    if not ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(command(**arguments))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
