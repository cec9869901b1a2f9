"""The modules of `sdk.blocking` that are made from the async classes are current, and as complete as those."""

import ast
import inspect

import pytest

import sdk
from scripts.facades import SOURCES, Source, content_of, facade
from sdk import blocking
from tests.tidy.tree import ROOT

SOURCE = '''
from collections.abc import AsyncIterator, Sequence
from mqcommon.names import MASTER_ID
from sdk.shared import Client
from sdk.checked import Count

LIMIT = 10
_OWN = 3

class Thing:
    """``async with Thing() as thing: ...``"""

    def __init__(self, nameserver: str | Client | None = None, *, group: str = "g") -> None:
        self.group = group

    async def __aenter__(self) -> None: ...

    # --- section

    @checked
    async def ask(self, name: str, count: Count = LIMIT, *, deep: bool = False) -> Sequence[str]:
        """What it says."""
        return [name] * MASTER_ID

    async def tell(self) -> None:
        """Say it."""

    def read(self, start: int, *, wait_ms: int = 0) -> MessageStream:
        """Batches."""

    async def each(self, start: int) -> AsyncIterator[MessageExt]:
        """One by one."""

    def inside(self) -> int:
        return 1
'''
MADE = '''
    def __init__(self, nameserver: str | Client | None=None, *, group: str='g') -> None:
        super().__init__(loop_of(nameserver, lambda client: AsyncThing(client, group=group)))
        self.group = group

    # --- section

    def ask(self, name: str, count: Count=LIMIT, *, deep: bool=False) -> Sequence[str]:
        """What it says."""
        return self._loop.call(lambda thing: thing.ask(name, count, deep=deep))

    def tell(self) -> None:
        """Say it."""
        self._loop.call(lambda thing: thing.tell())

    def read(self, start: int, *, wait_ms: int=0) -> Iterator[list[MessageExt]]:
        """Batches."""
        return batches_of(self._loop, lambda thing: thing.stream(start, wait_ms=wait_ms))

    def each(self, start: int) -> Iterator[MessageExt]:
        """One by one."""
        return messages_of(self._loop, lambda thing: thing.stream(start))
'''


@pytest.mark.parametrize("path", SOURCES)
def test_module_is_current(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == content_of(path), "stale: run scripts/docs"


def test_each_method_is_written_out() -> None:
    made = facade(Source("sdk.thing", "Thing", "thing"), SOURCE)
    assert made.endswith(MADE)
    assert '    """``with Thing() as thing: ...``"""\n' in made
    imported = [line for line in made.splitlines() if line.startswith("from ")]
    assert "from sdk.thing import LIMIT" in imported
    assert "from sdk.blocking.client import Client" in imported
    assert "from sdk.checked import Count" in imported
    assert not any("_OWN" in line or "MASTER_ID" in line for line in imported)
    ast.parse(made)


def test_a_method_without_a_docstring_is_refused() -> None:
    with pytest.raises(ValueError, match="ask needs a docstring"):
        facade(Source("sdk.thing", "Thing", "thing"), SOURCE.replace('"""What it says."""', ""))


@pytest.mark.parametrize("name", ["Admin", "Producer", "PullConsumer"])
def test_help_says_what_it_says_of_the_async_class(name: str) -> None:
    waiting, ready = getattr(sdk, name), getattr(blocking, name)
    methods = [key for key, value in vars(ready).items() if inspect.isfunction(value) and not key.startswith("_")]
    assert methods
    for key in methods:
        assert inspect.getdoc(getattr(ready, key)) == inspect.getdoc(getattr(waiting, key))
