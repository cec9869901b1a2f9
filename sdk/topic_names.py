"""`TopicNames`: which topics have names like a topic that does not exist, for log lines about a misspelt name."""

import logging
from collections.abc import Iterable
from math import inf

import trio

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.names import is_system_topic
from skylark.sdk import namesrv_api
from skylark.sdk.nameservers import NameServers
from skylark.sdk.namespaces import SEPARATOR, Names

logger = logging.getLogger(__name__)

# How long the NameServers may take: only a log line needs the names.
TIMEOUT_MS = 1_000
# How long the names are used.
KEPT_S = 60.0
# How many names are compared, in the event loop: the first ones of LONGEST characters at most and of a similar length.
MOST_NAMES = 200
LONGEST = 127
# How many characters of a misspelt name may be wrong, next to each other.
MOST_WRONG = 2


class TopicNames:
    """The names of all topics that one client's NameServers know, asked for once in KEPT_S at most."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._asked_at = -inf
        self._asking = trio.Lock()

    async def like(self, topic: str, names: Names, servers: NameServers) -> str:
        """The end of a log line about the missing ``topic`` (the servers' name), a name in the namespace of ``names``.

        Empty when no topic has a name like it, or when the NameServers do not list them for this client.
        """
        async with self._asking:
            if trio.current_time() - self._asked_at >= KEPT_S:
                self._asked_at = trio.current_time()
                try:
                    self._names = await servers.ask(namesrv_api.topic_names, TIMEOUT_MS)
                except SkylarkError as error:
                    logger.info("no names of topics: %s", error)
        own = f"{names.namespace}{SEPARATOR}" if names.namespace else ""
        known = (names.plain(name) for name in self._names if name.startswith(own) and not is_system_topic(name))
        near = near_names(names.plain(topic), known)
        return f". There is {' and '.join(map(repr, near))}: is the name right?" if near else ""


def near_names(topic: str, known: Iterable[str]) -> list[str]:
    """The names in ``known`` that ``topic`` may be a misspelling of, 3 at most.

    A name in another namespace does not count, nor ``topic`` itself: ``known`` may be older than the loss of the topic.
    """
    near: list[str] = []
    compared = 0
    for name in known:
        if name == topic or SEPARATOR in name or len(name) > LONGEST or abs(len(name) - len(topic)) > MOST_WRONG:
            continue
        compared += 1
        if _is_near(topic.lower(), name.lower()):
            near.append(name)
        if compared == MOST_NAMES or len(near) == 3:
            break
    return near


def _is_near(one: str, other: str) -> bool:
    """Whether the names differ in one place only, and have more in common than that."""
    common = _common(one, other)
    one, other = one[common:], other[common:]
    common_end = _common(one[::-1], other[::-1])
    wrong = max(len(one), len(other)) - common_end
    return wrong <= MOST_WRONG and common + common_end > wrong


def _common(one: str, other: str) -> int:
    """How many characters at the beginning of both are equal."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
