"""Progress of something long: on a terminal one line that is rewritten, otherwise a new line now and then."""

import shutil
import subprocess
import sys
import time

LINE_INTERVAL_S = 2.0
WAITING_INTERVAL_S = 5.0
REWRITE_INTERVAL_S = 0.1
# To the start of the line, and erase it.
REWRITE = "\r\033[K"


class Progress:
    """Call ``update`` as often as you like; ``done`` prints the last line."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._terminal = sys.stdout.isatty()
        self._interval_s = REWRITE_INTERVAL_S if self._terminal else LINE_INTERVAL_S
        self._started = self._shown = time.monotonic()
        self._at = 0

    def update(self, at: int, note: str = "") -> None:
        """Show the progress, unless it was shown just now."""
        self._at = at
        now = time.monotonic()
        if now - self._shown >= self._interval_s:
            self._shown = now
            self._show(note, end="" if self._terminal else "\n")

    def say(self, text: str) -> None:
        """Print a separate line."""
        print(f"{self._clear}  {text}", flush=True)

    def done(self, note: str = "") -> None:
        """Print the last line."""
        self._show(note, end="\n")

    def _show(self, note: str, end: str) -> None:
        seconds = max(time.monotonic() - self._started, 0.001)
        share = 100 * self._at // max(self._total, 1)
        rate = f"{self._at / seconds:,.0f}/s"
        text = f"{self._title}: {self._at:,} of {self._total:,} ({share} %), {rate} {note}".rstrip()
        print(f"{self._clear}{_cut(f'  {text}') if self._terminal else f'  {text}'}", end=end, flush=True)

    @property
    def _clear(self) -> str:
        return REWRITE if self._terminal else ""


def wait_shown(title: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a process and show meanwhile that it runs. The process is ended when the wait is."""
    terminal = sys.stdout.isatty()
    started = time.monotonic()
    print(f"  {title} ...", end="" if terminal else "\n", flush=True)
    try:
        while process.poll() is None:
            try:
                process.wait(REWRITE_INTERVAL_S if terminal else WAITING_INTERVAL_S)
            except subprocess.TimeoutExpired:
                text = f"  {title} ... {time.monotonic() - started:.0f} s"
                print(f"{REWRITE}{_cut(text)}" if terminal else text, end="" if terminal else "\n", flush=True)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if terminal:
        print(REWRITE, end="", flush=True)


def _cut(text: str) -> str:
    """The part that fits on one line of the terminal: a longer line would wrap, and could not be rewritten."""
    return text[: shutil.get_terminal_size().columns - 1]
