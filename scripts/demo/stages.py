"""The stages of a run: their titles as they begin, and at the end what each took."""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from scripts.demo.report import first_of


class Stages:
    """Use `stage` for each, `show` at the end."""

    def __init__(self) -> None:
        self._ended: list[tuple[str, float]] = []

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        print(f"\n{title}", flush=True)
        started = time.monotonic()
        yield
        self._ended.append((title, time.monotonic() - started))

    def show(self) -> None:
        print()
        for title, seconds in self._ended:
            print(f"{title:<50} {seconds:6.1f} s")


def run_stage(stage: Callable[[], Awaitable[None]]) -> None:
    """Run a stage in trio; when several of its tasks fail, the first error is raised."""
    try:
        trio.run(stage)
    except BaseExceptionGroup as group:
        raise first_of(group) from None
