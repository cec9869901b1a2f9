"""The first thing that a console command imports, so that Ctrl-C while the rest is imported leaves no traceback.

It imports nothing slow itself: `_signal` is the fast module that `signal` wraps in enums.
"""

import _signal  # type: ignore[import-not-found]  # built in, but typeshed leaves it out
import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

# The exit code that a shell reports for a process that SIGINT ended.
INTERRUPTED = 130
# The garbage collector's thresholds: how many new objects, and how many collections of younger objects. Imports make
# hundreds of thousands of objects that stay, and under load the loop of a daemon makes a thousand short-lived tuples a
# millisecond: to search for cycles after every 700 new objects, as Python does, would waste time.
GC_THRESHOLDS = 50_000, 20, 50


def import_quietly(module: str) -> None:
    """Import ``module``; Ctrl-C meanwhile ends the process by the signal, without a traceback.

    For imports of a command that runs already and has nothing to clean up yet.
    """
    raises_interrupt = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    try:
        if raises_interrupt:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    except ValueError:
        raises_interrupt = False  # in another thread: handlers are set, and interrupted, in the main thread only
    try:
        __import__(module)
    finally:
        if raises_interrupt:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def start_daemon(place: str, prog_name: str) -> "NoReturn":
    """As `start`; on another system than Linux ends with exit code 1 and a line that says so."""
    from skylark.mqcommon.daemons.linux import why_not_here

    if reason := why_not_here(prog_name):
        sys.exit(reason)
    start(place, prog_name=prog_name)


def start(place: str, **arguments: str) -> "NoReturn":
    """Import ``place`` ("module:function"), call it with ``arguments``, and exit with the code that it returns."""
    ignored = _signal.getsignal(_signal.SIGINT) == _signal.SIG_IGN
    if not ignored:
        # Restore the system's default: the signal ends the process silently.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    gc.set_threshold(*GC_THRESHOLDS)
    module, _, attribute = place.partition(":")
    __import__(module)
    command: Callable[..., int] = getattr(sys.modules[module], attribute)
    if not ignored:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    try:
        sys.exit(command(**arguments))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # The interpreter ends with a full collection, which would visit all objects of all modules for nothing.
        gc.freeze()
