import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from mqcommon.errors import SkylarkError, UserError
from sdk.blocking.loop import ClientLoop


class Client:
    """Notes its life."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.cancelled = threading.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Client"]:
        self.opened += 1
        try:
            yield self
        finally:
            await trio.lowlevel.checkpoint_if_cancelled()
            self.closed += 1

    async def double(self, number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number

    async def wait(self) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled.set()
            raise


def skylark_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "skylark-sdk"]


def test_calls_run_in_the_loop_and_closing_joins() -> None:
    client = Client()
    loop = ClientLoop(client.open)
    loop.open()
    assert len(skylark_threads()) == 1
    assert loop.call(lambda it: it.double(21)) == 42
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda it: it.double(1 // 0))
    loop.close()
    loop.close()
    assert (client.opened, client.closed) == (1, 1)
    assert not skylark_threads()


def test_an_error_at_the_start_is_the_callers() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[Client]:
        await trio.lowlevel.checkpoint()
        raise UserError("no NameServer is given")
        yield Client()

    loop = ClientLoop(broken)
    with pytest.raises(UserError, match="no NameServer"):
        loop.open()
    assert not skylark_threads()
    loop.close()


def test_an_error_before_the_start_is_the_callers() -> None:
    def broken() -> trio.Nursery:
        raise UserError("bad option")

    with pytest.raises(UserError, match="bad option"):
        ClientLoop(broken)  # type: ignore[arg-type]


def test_it_must_be_open() -> None:
    loop = ClientLoop(Client().open)
    with pytest.raises(RuntimeError, match="with"):
        loop.call(lambda it: it.double(1))
    loop.open()
    with pytest.raises(RuntimeError, match="make another"):
        loop.open()
    loop.close()
    with pytest.raises(SkylarkError, match="closed"):
        loop.call(lambda it: it.double(1))
    loop.opened().post(lambda it: it.opened)


def test_many_threads_may_call() -> None:
    loop = ClientLoop(Client().open)
    loop.open()
    got: list[int] = []
    threads = [
        threading.Thread(target=lambda number=number: got.append(loop.call(lambda it: it.double(number))))
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loop.close()
    assert sorted(got) == [2 * number for number in range(20)]


def test_closing_ends_a_call_that_waits() -> None:
    client = Client()
    loop = ClientLoop(client.open)
    loop.open()
    caught: list[BaseException] = []
    started = threading.Event()

    async def wait(it: Client) -> None:
        started.set()
        await it.wait()

    def call() -> None:
        try:
            loop.call(wait)
        except SkylarkError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    started.wait()
    loop.close()
    thread.join()
    assert len(caught) == 1 and client.cancelled.is_set()


def test_an_interrupt_cancels_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the thread that waits, not the loop."""
    client = Client()
    loop = ClientLoop(client.open)
    loop.open()
    real = trio.from_thread.run

    def interrupted(function: object, *args: object, trio_token: trio.lowlevel.TrioToken) -> None:
        started = threading.Event()

        async def run() -> None:
            started.set()
            await function(*args)  # type: ignore[operator]

        def in_thread() -> None:
            with pytest.raises(SkylarkError):
                real(run, trio_token=trio_token)

        threading.Thread(target=in_thread).start()
        started.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(trio.from_thread, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.call(lambda it: it.wait())
    assert client.cancelled.wait(5)
    monkeypatch.undo()
    assert loop.call(lambda it: it.double(2)) == 4
    loop.close()


# --- guests


def test_guests_use_the_thread_of_their_host_and_end_before_it() -> None:
    host, guest, other = Client(), Client(), Client()
    hosting = ClientLoop(host.open)
    loop, another = ClientLoop(guest.open, hosting), ClientLoop(other.open, hosting)
    hosting.open()
    loop.open()
    another.open()
    assert len(skylark_threads()) == 1
    assert loop.call(lambda it: it.double(21)) == 42
    loop.close()
    loop.close()
    assert (guest.opened, guest.closed, other.closed, host.closed) == (1, 1, 0, 0)
    with pytest.raises(SkylarkError, match="closed"):
        loop.call(lambda it: it.double(1))
    with pytest.raises(RuntimeError, match="make another"):
        loop.open()
    assert another.call(lambda it: it.double(1)) == hosting.call(lambda it: it.double(1)) == 2
    hosting.close()
    assert (other.closed, host.closed) == (1, 1)
    assert not skylark_threads()
    for closed in (another, loop):
        closed.close()
        with pytest.raises(SkylarkError, match="closed"):
            closed.call(lambda it: it.double(1))


def test_a_guest_needs_an_open_host() -> None:
    hosting = ClientLoop(Client().open)
    loop = ClientLoop(Client().open, hosting)
    with pytest.raises(RuntimeError, match="with"):
        loop.open()
    hosting.open()
    hosting.close()
    with pytest.raises(SkylarkError, match="closed"):
        ClientLoop(Client().open, hosting).open()


def test_a_guest_that_cannot_be_opened_does_its_host_no_harm() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[Client]:
        await trio.lowlevel.checkpoint()
        raise UserError("no NameServer is given")
        yield Client()

    hosting = ClientLoop(Client().open)
    hosting.open()
    loop = ClientLoop(broken, hosting)
    with pytest.raises(UserError, match="no NameServer"):
        loop.open()
    loop.close()
    assert hosting.call(lambda it: it.double(2)) == 4
    hosting.close()


@pytest.mark.parametrize("closing", ["the guest", "its host"])
def test_closing_ends_a_guests_call_that_waits(closing: str) -> None:
    client = Client()
    hosting = ClientLoop(Client().open)
    loop = ClientLoop(client.open, hosting)
    hosting.open()
    loop.open()
    caught: list[BaseException] = []
    started = threading.Event()

    async def wait(it: Client) -> None:
        started.set()
        await it.wait()

    def call() -> None:
        try:
            loop.call(wait)
        except SkylarkError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    started.wait()
    (loop if closing == "the guest" else hosting).close()
    thread.join()
    assert len(caught) == 1 and client.cancelled.is_set()
    hosting.close()


def test_an_error_of_the_host_ends_its_guests() -> None:
    @asynccontextmanager
    async def crashing() -> AsyncIterator[trio.Event]:
        crash = trio.Event()

        async def wait_and_raise() -> None:
            await crash.wait()
            raise ZeroDivisionError

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_and_raise)
            yield crash

    async def wait(it: Client) -> None:
        hosting.opened().post(lambda crash: crash.set())
        await it.wait()

    client = Client()
    hosting = ClientLoop(crashing)
    loop = ClientLoop(client.open, hosting)
    hosting.open()
    loop.open()
    with pytest.raises(SkylarkError, match="closed"):
        loop.call(wait)
    loop.close()
    hosting.close()
    assert client.cancelled.is_set() and not skylark_threads()
