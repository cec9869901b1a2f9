"""Names that stand for other addresses from time to time, as those of pods do. No server: a file has them.

Daemons find the file by the environment variable `NAMES`; start/sitecustomize.py calls `install` in each of them. This
module imports nothing of the tree, as daemons of another version run it, too.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NAMES = "ROLLING_NAMES"


class Names:
    """The file. ``addresses`` are those of a name; they change for all processes at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._addresses: dict[str, list[str]] = {}
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """What a daemon needs in its environment, besides ``PYTHONPATH``, in order to look here."""
        return {NAMES: str(self._path)}

    def add(self, name: str, address: str) -> None:
        """``name`` stands for ``address``, too. It may have been added before."""
        if address not in self._addresses.setdefault(name, []):
            self._addresses[name].append(address)
            self._write()

    def remove(self, name: str, address: str) -> None:
        """``name`` does not stand for ``address`` any more. It need not have been added."""
        if address in self._addresses.get(name, ()):
            self._addresses[name].remove(address)
            self._write()

    def of(self, name: str) -> Sequence[str]:
        """What ``name`` stands for; empty: nothing."""
        return self._addresses.get(name, ())

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._addresses), encoding="utf-8")
        new.replace(self._path)


def install(environment: Mapping[str, str] = os.environ) -> None:
    """Make this process look names up in the file first, and elsewhere when the file does not have them."""
    path = Path(environment[NAMES])
    system = socket.getaddrinfo

    def found(host: Any, port: Any, *rest: Any, **named: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        addresses = json.loads(path.read_text(encoding="utf-8")).get(name)
        if addresses is None:
            return system(host, port, *rest, **named)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [each for address in addresses for each in system(address, port, *rest, **named)]

    socket.getaddrinfo = found
