"""The modules of `sdk.blocking` and `sdk.aio` that are made from the trio classes are current and complete."""

import ast
import inspect
from types import ModuleType

import pytest

import sdk
from scripts.facades import AIO, BLOCKING, PATHS, Flavour, Source, content_of, facade
from sdk import aio, blocking
from tests.tidy.tree import ROOT

SOURCE = '''
from collections.abc import AsyncIterator, Sequence
from mqcommon.names import MASTER_ID
from sdk.shared import Client
from sdk.checked import Count

LIMIT = 10
_OWN = 3

class Own:
    """A class of that module."""

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

    def note(self, what: Own) -> None:
        """At once."""

    @property
    def size(self) -> int:
        """How many."""
        return 1

    # --- used by lanes

    @property
    def inside(self) -> int:
        return 1

    async def also_inside(self) -> int:
        return 1

    # --- internals

    def _within(self) -> int:
        return 1
'''
BLOCKING_METHODS = '''
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

    def note(self, what: Own) -> None:
        """At once."""
        self._loop.call_sync(lambda thing: thing.note(what))

    @property
    def size(self) -> int:
        """How many."""
        return self._loop.call_sync(lambda thing: thing.size)
'''
AIO_METHODS = '''
    def __init__(self, nameserver: str | Client | None=None, *, group: str='g') -> None:
        super().__init__(loop_of(nameserver, lambda client: TrioThing(client, group=group)))
        self.group = group

    # --- section

    async def ask(self, name: str, count: Count=LIMIT, *, deep: bool=False) -> Sequence[str]:
        """What it says."""
        return await self._loop.call(lambda thing: thing.ask(name, count, deep=deep))

    async def tell(self) -> None:
        """Say it."""
        await self._loop.call(lambda thing: thing.tell())

    def read(self, start: int, *, wait_ms: int=0) -> BatchStream[list[MessageExt]]:
        """Batches."""
        return batches_of(self._loop, lambda thing: thing.stream(start, wait_ms=wait_ms))

    def each(self, start: int) -> AsyncIterator[MessageExt]:
        """One by one."""
        return messages_of(self._loop, lambda thing: thing.stream(start))

    def note(self, what: Own) -> None:
        """At once."""
        self._loop.call_sync(lambda thing: thing.note(what))

    @property
    def size(self) -> int:
        """How many."""
        return self._loop.call_sync(lambda thing: thing.size)
'''
THING = Source("sdk.thing", "Thing", "thing")


@pytest.mark.parametrize("path", PATHS)
def test_module_is_current(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == content_of(path), "stale: run scripts/docs"


@pytest.mark.parametrize(("flavour", "methods"), [(BLOCKING, BLOCKING_METHODS), (AIO, AIO_METHODS)])
def test_each_method_is_written_out(flavour: Flavour, methods: str) -> None:
    made = facade(flavour, THING, [SOURCE])
    assert made.endswith(methods)
    assert f'    """``{"async " if flavour is AIO else ""}with Thing() as thing: ...``"""\n' in made
    imported = [line for line in made.splitlines() if line.startswith("from ")]
    assert "from sdk.thing import LIMIT" in imported
    assert "from sdk.thing import Own" in imported
    assert f"from {flavour.package.replace('/', '.')}.client import Client" in imported
    assert "from sdk.checked import Count" in imported
    assert not any("_OWN" in line or "MASTER_ID" in line for line in imported)
    ast.parse(made)


def test_a_class_that_shares_no_client_has_a_loop_of_its_own() -> None:
    made = facade(AIO, THING, [SOURCE.replace("str | Client | None = None", "str")])
    assert "super().__init__(Portal(lambda: TrioThing(nameserver, group=group)))" in made
    assert "from sdk.aio.portal import Portal" in made and "Client" not in made


def test_a_method_that_need_not_cross_to_the_loop_is_that_of_a_part() -> None:
    made = facade(AIO, Source("sdk.thing", "Thing", "thing", direct={"note": ("_notes", "Notes")}), [SOURCE])
    assert "        self._notes = Notes(self._loop)\n" in made
    assert "        return self._notes.note(what)\n" in made


def test_a_method_without_a_docstring_is_refused() -> None:
    with pytest.raises(ValueError, match="ask needs a docstring"):
        facade(BLOCKING, THING, [SOURCE.replace('"""What it says."""', "")])


@pytest.mark.parametrize("package", [aio, blocking])
@pytest.mark.parametrize("name", ["Admin", "Client", "Producer", "PullConsumer"])
def test_help_says_what_it_says_of_the_trio_class(package: ModuleType, name: str) -> None:
    trio_class, made = getattr(sdk, name), getattr(package, name)
    public = {key: value for key, value in vars(made).items() if not key.startswith("_")}
    assert public
    for key, value in public.items():
        if key != "retried":  # an attribute of the trio class
            assert inspect.getdoc(value) == inspect.getdoc(getattr(trio_class, key))
        is_async = inspect.iscoroutinefunction(getattr(trio_class, key, None))
        assert inspect.iscoroutinefunction(value) == (is_async and package is aio)
