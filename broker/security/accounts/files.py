"""Reads and writes the files of accounts. All of this blocks.

The files are plain_acl.yml and, as in RocketMQ, the files in the folder ``acl`` beside it. If a file cannot be used,
its previous accounts stay in force. Files have mode 0600, as they hold secrets.
"""

import os
import time
from collections.abc import Callable
from dataclasses import field

from skylark.broker.security.accounts.account_file import AccountFile, parse_file
from skylark.broker.security.accounts.edits import AccountDocument
from skylark.broker.security.accounts.rules import AccountRules
from skylark.mqcommon.disk.atomic import exclusive, write_atomic
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.disk.secret_file import read_secret_file
from skylark.mqcommon.errors import ConfigError, StoreError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.yaml_documents import parse_yaml

FOLDER = "acl"
_ENDINGS = (".yml", ".yaml")
_MAX_FILES = 1_000
# An editor may empty a file before it writes it. Two equal reads this far apart: the editor has finished writing.
_SETTLE_S = 0.05
_MOST_READS = 20


@lazy_dataclass(frozen=True, slots=True)
class _Read:
    text: str = field(repr=False)
    file: AccountFile


class AccountFiles:
    """The file at ``path`` and the files beside it. `refresh` reads them; ``rules`` are of the last good reading."""

    def __init__(self, path: str, *, white_skips_all: bool) -> None:
        self.path = os.path.abspath(path)
        self._folder = os.path.join(os.path.dirname(self.path), FOLDER)
        self._white_skips_all = white_skips_all
        self._read: dict[str, _Read] = {}
        self.rules = AccountRules(())

    def refresh(self) -> list[str]:
        """Read the changed files, and make ``rules`` of all files. Returns the problems.

        The previous accounts of a file with a problem stay in force.
        """
        try:
            read, problems = self._read_all()
        except (OSError, UserError) as error:
            return [str(error)]
        if read != self._read or not self.rules.files:
            try:
                files = [each.file for each in read.values()]
                self.rules = AccountRules(files, white_skips_all=self._white_skips_all)
            except ConfigError as error:
                # It is not known which file is wrong, so all files are read again the next time.
                return [*problems, str(error)]
            self._read = read
        return problems

    def change(self, path: str, edit: Callable[[AccountDocument], None], now_ms: int) -> None:
        """Have ``edit`` change the file at ``path``, which is made if missing.

        UserError when it cannot be used, or could not be used after the change.
        """
        files = OsFiles()
        try:
            # The instances of a broker share one file: no instance may undo a change that another has just made.
            with exclusive(files, path):
                write_atomic(files, path, self._changed(path, edit, now_ms).encode())
        except (OSError, StoreError) as error:
            raise UserError(f"{path}: cannot be written: {error}") from None

    def _changed(self, path: str, edit: Callable[[AccountDocument], None], now_ms: int) -> str:
        """The text of the file after the change."""
        # The accounts of a removed file stay in force. A new file in its place would end them, so this is an error.
        text = read_secret_file(path) if path in self._read or os.path.exists(path) else ""
        version = parse_file(parse_yaml(text, path), path).version
        document = AccountDocument(text, path)
        edit(document)
        document.put_version(version.next(now_ms))
        new_text = document.text()
        self._check_together(parse_file(parse_yaml(new_text, path), path))
        return new_text

    def _check_together(self, changed: AccountFile) -> None:
        """UserError when ``changed`` could not be put in force together with the other files."""
        try:
            read, _ = self._read_all()
        except OSError as error:
            raise UserError(str(error)) from None
        AccountRules([*(each.file for path, each in read.items() if path != changed.path), changed])

    def _read_all(self) -> tuple[dict[str, _Read], list[str]]:
        """All files by their paths, and the problems. A file with a problem has its previous contents, if any."""
        problems: list[str] = []
        read: dict[str, _Read] = {}
        for path in self._paths():
            old = self._read.get(path)
            try:
                read[path] = _read(path, old)
            except UserError as error:
                problems.append(str(error))
                if old is not None:
                    read[path] = old
        return read, problems

    def _paths(self) -> list[str]:
        """The paths in RocketMQ's order: the folder, and then plain_acl.yml."""
        found = sorted(
            os.path.join(folder, name)
            for folder, _, names in os.walk(self._folder, onerror=_raise_unless_gone)
            for name in names
            if name.endswith(_ENDINGS)
        )
        if len(found) > _MAX_FILES:
            raise ConfigError(f"{self._folder}: {len(found)} files; {_MAX_FILES} are the most: put accounts together")
        # plain_acl.yml may be absent from the start if there are other files, but must not disappear.
        has_default = not found or self.path in self._read or os.path.exists(self.path)
        return [*found, self.path] if has_default else found


def _raise_unless_gone(error: OSError) -> None:
    """Raise ``error`` unless the folder is missing: if a folder cannot be listed, its accounts must not just vanish."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _read(path: str, old: _Read | None) -> _Read:
    text = read_secret_file(path)
    if old is not None:
        if text == old.text:
            return old
        text = _settled(path, text)
        if not text.strip():
            raise ConfigError(f"{path}: it is empty now; write accounts: [] if there are to be no accounts")
    return _Read(text, parse_file(parse_yaml(text, path), path))


def _settled(path: str, text: str) -> str:
    for _ in range(_MOST_READS):
        time.sleep(_SETTLE_S)
        before, text = text, read_secret_file(path)
        if text == before:
            return text
    raise ConfigError(f"{path}: it changes all the time")
