"""``python -m tests.support.other_system SYSTEM NAMESERVER DIRECTORY``: clients without what SYSTEM lacks.

The modules and functions that macOS (darwin) or Windows (win32) do not have are removed once the standard library and
other packages, which know these systems, are imported. Then producers and consumers of all flavours run with the
NameServer, and a JSON object says what each of them got.
"""

import asyncio
import ctypes
import ctypes.util  # before the C library is hidden
import importlib
import json
import mmap
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click
import trio

# What is named here is what the product might use; mypy --platform knows all names (tests/tidy/test_platforms.py).
NOT_ON_MACOS: dict[ModuleType, str] = {
    os: """fdatasync posix_fadvise posix_fallocate POSIX_FADV_RANDOM POSIX_FADV_DONTNEED eventfd eventfd_read
        eventfd_write EFD_NONBLOCK EFD_CLOEXEC memfd_create sched_getaffinity sched_setaffinity copy_file_range splice
        pipe2 getrandom O_DIRECT""",
    select: "epoll EPOLLIN EPOLLOUT EPOLLET",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK MSG_NOSIGNAL TCP_USER_TIMEOUT TCP_CORK TCP_QUICKACK SO_INCOMING_CPU",
    mmap: "MAP_POPULATE",
}
NOT_ON_WINDOWS: dict[ModuleType, str] = {
    os: """O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC O_DSYNC chown fchown lchown fchmod fork forkpty
        register_at_fork getuid geteuid getgid getegid getgroups pread pwrite preadv pwritev readv writev sendfile sync
        posix_spawn statvfs fstatvfs uname sysconf getloadavg getpgid killpg setsid mkfifo wait3 wait4 WNOHANG nice
        SEEK_DATA SEEK_HOLE""",
    select: "poll POLLIN POLLOUT",
    socket: "AF_UNIX SO_REUSEPORT MSG_DONTWAIT",
    signal: """SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGPIPE SIGQUIT pthread_kill pthread_sigmask setitimer
        alarm sigwait""",
    time: "clock_gettime clock_gettime_ns CLOCK_MONOTONIC CLOCK_REALTIME tzset",
    mmap: "MADV_WILLNEED MADV_DONTNEED MADV_SEQUENTIAL MAP_SHARED MAP_PRIVATE PROT_READ PROT_WRITE",
}
MODULES_NOT_ON_WINDOWS = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "curses")


#: What users of macOS and Windows import or run, besides what the flavours use.
IMPORTED = (
    *("skylark", "skylark.aio", "skylark.blocking", "skylark.admin"),
    *("skylark.mqadmin.cli", "skylark.cli.send", "skylark.cli.tail", "skylark.cli.conf"),
)
PATIENCE_S = 60


class LockOfWindows(ModuleType):
    """``msvcrt``, as far as locks of files go, by the locks of this system."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self._fcntl = importlib.import_module("fcntl")

    def locking(self, fd: int, mode: int, size: int) -> None:
        assert (mode, size) == (self.LK_NBLCK, 1)
        assert os.lseek(fd, 0, os.SEEK_CUR), "bytes that are read are not locked"
        self._fcntl.flock(fd, self._fcntl.LOCK_EX | self._fcntl.LOCK_NB)


def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, which takes a descriptor, without sockets."""

    def wrapped(fd: int, *rest: Any) -> Any:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise OSError(9, "sockets are no file descriptors on Windows")
        return call(fd, *rest)

    return wrapped


def not_there(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError


def become(system: str) -> None:
    """Remove what ``system`` does not have."""
    for name in ("cbor2", "javaproperties", "orjson", "sniffio"):
        importlib.import_module(name)
    # The loops chose their way to wait for descriptors when they were imported, and go on with this system's.
    waits = ModuleType("select")
    vars(waits).update(vars(select))
    for name in ("trio._core._io_epoll", "selectors"):
        sys.modules[name].select = waits  # type: ignore[attr-defined]
    # Windows has socket pairs of another family.
    socket.socketpair = partial(socket.socketpair, socket.AF_UNIX)
    removed = [NOT_ON_MACOS] if system == "darwin" else [NOT_ON_MACOS, NOT_ON_WINDOWS]
    for module, names in ((module, names) for table in removed for module, names in table.items()):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    if system == "win32":
        sys.modules["msvcrt"] = LockOfWindows()
        for name in MODULES_NOT_ON_WINDOWS:
            sys.modules[name] = None  # type: ignore[assignment]  # importing the module fails
        os.read, os.write = refusing(os.read), refusing(os.write)
        # The C library of Windows has no name, and its event loop watches no descriptors.
        ctypes.CDLL = ctypes.PyDLL = not_there  # type: ignore[assignment, misc]
        loop = asyncio.BaseEventLoop
        for name in ("add_reader", "add_writer", "add_signal_handler"):
            setattr(asyncio.SelectorEventLoop, name, getattr(loop, name))
    sys.platform = system


def sent(topic: str) -> list[Any]:
    """Messages to send: small, with a key, and so large that a socket takes it in parts."""
    from skylark import Message

    return [Message(topic, b"small"), Message(topic, b"with a key", keys="k"), Message(topic, b"large" * 500_000)]


def arguments(topic: str, handler: Callable[..., Any]) -> dict[str, Any]:
    """Arguments of a PushConsumer that reads ``topic`` from its first message."""
    from skylark import ConsumeFrom

    first = ConsumeFrom.FIRST_OFFSET
    return {"group": f"{topic}-readers", "subscriptions": {topic: "*"}, "handler": handler, "consume_from": first}


class Got:
    """The sizes of the bodies that a handler got; ``when_all`` is called with the last."""

    def __init__(self, when_all: Callable[[], object]) -> None:
        self.sizes: list[int] = []
        self._when_all = when_all

    def add(self, message: Any) -> None:
        self.sizes.append(len(message.body))
        if len(self.sizes) == 3:
            self._when_all()


async def in_trio(nameserver: str, directory: str) -> dict[str, list[int]]:
    from skylark import Producer, PullConsumer, PushConsumer, SimpleConsumer

    is_done, has_all = trio.Event(), trio.Event()
    pushed, broadcast = Got(is_done.set), Got(has_all.set)

    async def push(message: Any) -> None:
        pushed.add(message)

    async def cast(message: Any) -> None:
        broadcast.add(message)

    with trio.fail_after(PATIENCE_S):
        async with (
            Producer(nameserver, group="p") as producer,
            PushConsumer(nameserver, **arguments("trio", push)),
            PushConsumer(nameserver, **arguments("cast", cast), broadcast=True, local_offsets_dir=directory),
            SimpleConsumer(nameserver, group="simple", subscriptions={"popped": "*"}) as simple,
            PullConsumer(nameserver, group="pull") as puller,
        ):
            for topic in ("trio", "cast", "popped"):
                for message in sent(topic):
                    result = await producer.send(message)
            await is_done.wait()
            await has_all.wait()
            popped: list[int] = []
            while len(popped) < 3:
                for received in await simple.receive(3, wait_ms=1_000):
                    popped.append(len(received.body))
                    await simple.ack(received)
            async for message in puller.messages(result.queue, result.queue_offset):
                pulled = [len(message.body)]
                break
    return {"push": pushed.sizes, "broadcast": broadcast.sizes, "pop": popped, "pull": pulled}


async def in_asyncio(nameserver: str) -> dict[str, list[int]]:
    from skylark.aio import Producer, PushConsumer

    is_done = asyncio.Event()
    pushed = Got(is_done.set)

    async def push(message: Any) -> None:
        pushed.add(message)

    async with (
        asyncio.timeout(PATIENCE_S),
        Producer(nameserver, group="p") as producer,
        PushConsumer(nameserver, **arguments("asyncio", push)),
    ):
        for message in sent("asyncio"):
            await producer.send(message)
        await is_done.wait()
    return {"push": pushed.sizes}


def in_threads(nameserver: str) -> dict[str, list[int]]:
    from skylark.blocking import Producer, PushConsumer

    is_done = threading.Event()
    pushed = Got(is_done.set)
    with (
        Producer(nameserver, group="p") as producer,
        PushConsumer(nameserver, **arguments("threads", pushed.add)),
    ):
        for message in sent("threads"):
            producer.send(message)
        assert is_done.wait(PATIENCE_S), pushed.sizes
    return {"push": pushed.sizes}


def main(system: str, nameserver: str, directory: str) -> None:
    become(system)
    flavours = {
        "trio": trio.run(in_trio, nameserver, directory),
        "asyncio": asyncio.run(in_asyncio(nameserver)),
        "threads": in_threads(nameserver),
    }
    secret = Path(directory) / "secret"
    secret.write_text("accessKey=a\nsecretKey=s\n")
    secret.chmod(0o666 if system == "win32" else 0o600)
    from skylark import read_credentials

    flavours["credentials"] = read_credentials(secret).access_key
    for name in IMPORTED:
        module = importlib.import_module(name)
        for each in getattr(module, "__all__", ()):
            getattr(module, each)
    click.echo(json.dumps(flavours))


if __name__ == "__main__":
    main(*sys.argv[1:])
