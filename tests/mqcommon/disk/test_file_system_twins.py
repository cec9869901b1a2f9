"""MemoryFiles, through which stores are tested, behaves as OsFiles does: any series of operations has equal results."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylark.mqcommon.disk.atomic import read_or_backup, write_atomic
from skylark.mqcommon.disk.files import FileSystem, OsFiles
from skylark.mqcommon.errors import StoreError
from tests.support.memory_files import MemoryFiles

names = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "none/a"])
folders = st.sampled_from(["d", "d/e", "d/f"])
contents = st.binary(max_size=20)


def outcome(call: Callable[[], Any]) -> Any:
    """A result, or which kind of error it was."""
    try:
        return call()
    except StoreError as error:
        return type(error)
    except OSError as error:
        return error.errno


class Twins(RuleBasedStateMachine):
    """Each rule does the same on both disks."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.root = self.stack.enter_context(tempfile.TemporaryDirectory())
        memory = MemoryFiles()
        memory.mkdirs(self.root)
        self.disks: list[FileSystem] = [OsFiles(), memory]
        self.handles: dict[str, list[Any]] = {}

    def both(self, call: Callable[[FileSystem], Any]) -> Any:
        first, second = (outcome(lambda disk=disk: call(disk)) for disk in self.disks)
        assert first == second
        return first

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    @rule(folder=folders)
    def mkdirs(self, folder: str) -> None:
        self.both(lambda fs: fs.mkdirs(self.path(folder)))

    @rule(name=names, data=contents)
    def write_atomic(self, name: str, data: bytes) -> None:
        if name not in self.handles:
            self.both(lambda fs: write_atomic(fs, self.path(name), data, keep_backup=True))
            self.both(lambda fs: read_or_backup(fs, self.path(name)))

    @rule(name=names)
    def open_append(self, name: str) -> None:
        if name not in self.handles:
            self._open(name, [outcome(lambda disk=disk: disk.open_append(self.path(name))) for disk in self.disks])

    @rule(name=names, size=st.integers(0, 30), create=st.booleans())
    def open_map(self, name: str, size: int, create: bool) -> None:
        if name not in self.handles and (size or not create):
            opened = [
                outcome(lambda disk=disk: disk.open_map(self.path(name), size, create=create)) for disk in self.disks
            ]
            self._open(name, opened)

    def _open(self, name: str, opened: list[Any]) -> None:
        if hasattr(opened[0], "close"):
            self.handles[name] = opened
        else:
            assert opened[0] == opened[1]

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), content=contents, at=st.integers(0, 30))
    def write(self, data: st.DataObject, content: bytes, at: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.handles)))
        for handle in self.handles[name]:
            if hasattr(handle, "view"):
                part = content[: max(0, handle.size - at)]
                handle.view[at : at + len(part)] = part
            else:
                handle.write(content)
        self._same(name)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), size=st.integers(0, 30))
    def truncate(self, data: st.DataObject, size: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.handles)))
        if not hasattr(self.handles[name][0], "view"):
            for handle in self.handles[name]:
                handle.truncate(min(size, handle.size()))
        self._same(name)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def sync_and_close(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.handles)))
        for handle in self.handles.pop(name):
            handle.sync()
            handle.close()
            handle.close()

    def _same(self, name: str) -> None:
        shown = [bytes(h.view[:]) if hasattr(h, "view") else h.size() for h in self.handles[name]]
        assert shown[0] == shown[1]

    @rule(old=names, new=names)
    def rename(self, old: str, new: str) -> None:
        if old not in self.handles and new not in self.handles and old != new:
            self.both(lambda fs: fs.rename(self.path(old), self.path(new)))

    @rule(old=names, new=names)
    def link(self, old: str, new: str) -> None:
        if old not in self.handles and new not in self.handles:
            self.both(lambda fs: fs.link(self.path(old), self.path(new)))

    @rule(name=names)
    def remove(self, name: str) -> None:
        if name not in self.handles:
            self.both(lambda fs: fs.remove(self.path(name)))

    @rule(name=st.sampled_from(["/d/e", "/d", "/none"]))
    def remove_dir_and_make_it_again(self, name: str) -> None:
        self.both(lambda fs: fs.remove_empty_dir(self.root + name))
        self.both(lambda fs: fs.mkdirs(f"{self.root}/d/e"))

    @invariant()
    def same_names_and_bytes(self) -> None:
        for folder in ("", "/d", "/d/e", "/none"):
            found = self.both(lambda fs, folder=folder: fs.listdir(self.root + folder))
            for name in found:
                path = f"{self.root}{folder}/{name}"
                if not self.both(lambda fs, path=path: fs.is_dir(path)):
                    self.both(
                        lambda fs, path=path: (
                            fs.exists(path),
                            fs.size(path),
                            fs.read(path),
                            fs.link_count(path),
                            fs.read_direct(path, 3, 9),
                        )
                    )

    def teardown(self) -> None:
        for handles in self.handles.values():
            for handle in handles:
                handle.close()
        self.stack.close()


TestTwins = Twins.TestCase
