"""All descriptions of requests (remoting/protocol/requests): the table of what belongs to which code."""

import importlib
import pkgutil
from typing import Any

from remoting.protocol import requests
from remoting.protocol.request import Request

Described = Request[Any, Any, Any, Any]


def _described() -> list[tuple[str, Described]]:
    found = []
    for info in pkgutil.iter_modules(requests.__path__, f"{requests.__name__}."):
        module = importlib.import_module(info.name)
        found += [(name, value) for name, value in vars(module).items() if isinstance(value, Request)]
    return found


#: As they are written: the name of an entry, and the entry.
ENTRIES = _described()
BY_CODE = {entry.code: entry for _, entry in ENTRIES}
BY_NAME = dict(ENTRIES)
