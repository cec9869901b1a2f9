"""The NameServers that a client knows: where their addresses come from, and which NameServer is asked.

The addresses come from text, a sequence, a conf file, the environment, or an address server. A conf file is in the
format of Java properties, as RocketMQ's: ``namesrvAddr`` (as in broker.conf) or ``rocketmq.namesrv.addr``, else
``rocketmq.namesrv.domain`` for an address server. Other keys are ignored, so the broker's own file can be used. Every
NameServer knows all brokers, so one answer is enough. A client starts with a random NameServer, stays with the
NameServer that answered last, and goes on to the next NameServer after a failure. Each try gets a share of the timeout,
so that a frozen NameServer does not use up all of it. An address server may replace the list at any time
(remoting/net/address_server.py). RocketMQ's clients ask it every two minutes. A bad or missing answer changes nothing:
the last known addresses stay in use.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.arguments import wrong_type
from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import (
    BrokerError,
    InvalidArgument,
    NoNameServer,
    NotNameServer,
    NotRocketMQ,
    RemotingError,
    SkylarkError,
    UserError,
)
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.address_server import AddressServer, address_of, address_server_url, addresses_in
from skylark.remoting.net.client import RemotingClient
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.runtime import survived

NameServerSource = str | Path | Sequence[str]

NAMESRV_ADDR = "NAMESRV_ADDR"
ADDR_KEYS = ("namesrvAddr", "rocketmq.namesrv.addr")
DOMAIN_KEY = "rocketmq.namesrv.domain"
SUBGROUP_KEY = "rocketmq.namesrv.domain.subgroup"
# A larger file is not accepted as a conf file.
MAX_CONF_BYTES = 1024 * 1024
_SCHEMES = ("http://", "https://")


@lazy_dataclass(frozen=True, slots=True)
class Known:
    """Addresses of NameServers, or the URL of the address server that lists them, or neither."""

    addrs: tuple[str, ...] = ()
    url: str = ""

    def __bool__(self) -> bool:
        return bool(self.addrs or self.url)


def find_nameservers(given: NameServerSource | None, *, required: bool = True) -> Known:
    """The NameServers in ``given``; in $NAMESRV_ADDR when ``given`` is None or empty.

    Raises InvalidArgument for a wrong value, and UserError when there is no NameServer and one is ``required``.
    """
    if isinstance(given, Path):
        return _in_conf(given)
    if given is not None and not isinstance(given, str):
        if isinstance(given, bytes) or not isinstance(given, Sequence):
            raise wrong_type("nameserver", "a str like 'host:port;host:port', a sequence of them, or a Path", given)
        for number, each in enumerate(given):
            if not isinstance(each, str):
                raise wrong_type(f"nameserver[{number}]", "a str like 'host:port'", each)
        given = ";".join(given)
    found = _in_text(given or os.environ.get(NAMESRV_ADDR) or "")
    if not found and required:
        raise none_given()
    return found


def none_given() -> UserError:
    """The error of a client that needs a NameServer and knows none."""
    return UserError(f"no NameServer is given: pass host:port, or set {NAMESRV_ADDR}=host:port;host:port")


def _in_text(text: str) -> Known:
    text = text.strip()
    if not text.startswith(_SCHEMES):
        return Known(addresses_in(text))
    if not text.startswith("http:") or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidArgument(f"{text!r} is not the URL of an address server: only plain http:// is supported")
    try:
        address_of(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} is not the URL of an address server: it needs http://host:port/path") from None
    return Known(url=text)


def _in_conf(path: Path) -> Known:
    # Imported here, as javaproperties imports parsers of XML and of e-mail, and most clients get addresses.
    import javaproperties

    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CONF_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the conf file {str(path)!r} cannot be read: {error}") from None
    if len(text) > MAX_CONF_BYTES:
        raise UserError(f"{str(path)!r} is larger than a conf file can be ({MAX_CONF_BYTES} bytes)")
    try:
        values = {key: value.strip() for key, value in javaproperties.loads(text).items()}
    except javaproperties.InvalidUEscapeError as error:
        raise UserError(f"the conf file {str(path)!r} is not in the format of properties: {error}") from None
    for key in ADDR_KEYS:
        if values.get(key):
            return _in_text(values[key])
    domain = values.get(DOMAIN_KEY)
    if not domain:
        keys = ", ".join((*ADDR_KEYS, DOMAIN_KEY))
        raise UserError(f"the conf file {str(path)!r} names no NameServer: set one of {keys}")
    return _in_text(address_server_url(domain, values.get(SUBGROUP_KEY) or "nsaddr"))


logger = logging.getLogger(__name__)


REFRESH_S = 120


@enable_ki_protection
async def follow_address_server(
    server: AddressServer, found: Callable[[tuple[str, ...]], bool], backoff: Backoff
) -> None:
    """Call ``found`` with the server's list, now and every REFRESH_S. ``found`` returns whether the list has changed.

    Until the first answer the server is asked again after short pauses.
    """
    failures, is_known = 0, False
    while True:
        with survived("asking the address server"):
            try:
                addrs = await server.fetch()
            except SkylarkError as error:
                failures += 1
                if failures == 1:
                    kept = "keeping the last known ones" if is_known else "asking again"
                    logger.warning("the address server %s did not list NameServers, %s: %s", server.url, kept, error)
            else:
                failures, is_known = 0, True
                if found(addrs):
                    logger.info("the address server %s lists the NameServers %s", server.url, ";".join(addrs))
        await trio.sleep(REFRESH_S if is_known else backoff.pause_s(max(failures, 1)))


T = TypeVar("T")

# The smallest share of the timeout: a healthy NameServer answers within it.
MIN_TRY_MS = 250


class NameServers:
    """The NameServers of one client: ``known`` addresses, or addresses that an address server will list.

    There may be none: `ask` then raises UserError, or NoNameServer while an address server has not answered.
    """

    def __init__(self, client: RemotingClient, known: Known, random: Random) -> None:
        self._client = client
        self._url = known.url
        self._random = random
        self._addrs: tuple[str, ...] = ()
        # The address of the NameServer that answered last.
        self._good = ""
        # The addresses at which another kind of server was found, and logged.
        self._strangers: set[str] = set()
        self._arrived = trio.Event()
        self.replace(known.addrs)

    @property
    def text(self) -> str:
        """All addresses, separated by ``;``."""
        return ";".join(self._addrs) or self._url

    @property
    def addrs(self) -> tuple[str, ...]:
        """All addresses that are known now."""
        return self._addrs

    @property
    def first(self) -> str:
        """The address that is asked first: of the NameServer that answered last; "" while none is known."""
        return self._good

    def skip(self, addr: str) -> None:
        """Ask the NameServer after ``addr`` first, because ``addr`` does not answer."""
        if addr == self._good and addr in self._addrs:
            self._good = self._addrs[(self._addrs.index(addr) + 1) % len(self._addrs)]

    def replace(self, addrs: tuple[str, ...]) -> bool:
        """Use these addresses from now on; requests in progress go on. Returns whether the list has changed."""
        if addrs == self._addrs:
            return False
        self._addrs = addrs
        self._strangers.intersection_update(addrs)
        if self._good not in addrs:
            self._good = addrs[self._random.randrange(len(addrs))]
        self._arrived.set()
        return True

    async def wait_known(self, timeout_ms: float) -> tuple[str, ...]:
        """All addresses. Waits until an address server has listed them; UserError when there is no such server."""
        if not self._addrs:
            if not self._url:
                raise none_given()
            with trio.move_on_after(timeout_ms / 1000):
                await self._arrived.wait()
            if not self._addrs:
                raise NoNameServer(self._url, "the address server has not listed any yet")
        return self._addrs

    def at(self, addr: str, timeout_ms: float) -> Endpoint:
        """One NameServer."""
        return Endpoint(self._client, addr, timeout_ms)

    async def ask(
        self, call: Callable[[Endpoint], Awaitable[T]], timeout_ms: float, *, not_known: Collection[int] = ()
    ) -> T:
        """The first answer of a NameServer to ``call`` within ``timeout_ms``.

        When a NameServer does not answer, or answers with a code in ``not_known`` (it may just have started), or is
        another kind of server, the next NameServer is asked. When all fail, the last BrokerError with such a code is
        raised, else the last failure to answer, else NotNameServer or NotRocketMQ.
        """
        deadline = trio.current_time() + timeout_ms / 1000
        addrs = self._addrs or await self.wait_known(timeout_ms)
        first = addrs.index(self._good)
        failure: RemotingError | None = None
        unknown: BrokerError | None = None
        stranger: NotNameServer | NotRocketMQ | None = None
        for number in range(len(addrs)):
            addr = addrs[(first + number) % len(addrs)]
            left_ms = (deadline - trio.current_time()) * 1000
            if number and left_ms <= 0:
                break
            # An equal share of the remaining time: a NameServer that failed at once leaves its share to the others.
            try_ms = max(left_ms / (len(addrs) - number), MIN_TRY_MS)
            try:
                answer = await call(self.at(addr, try_ms))
            except (NotNameServer, NotRocketMQ) as error:
                stranger = error
                if isinstance(error, NotRocketMQ):
                    stranger = NotRocketMQ(error.addr, error.protocol, is_nameserver=True)
                if len(addrs) > 1 and addr not in self._strangers:  # otherwise the error is raised
                    self._strangers.add(addr)
                    logger.warning("%s", stranger)
            except RemotingError as error:
                logger.info("NameServer failed, trying the next: %s", error)
                failure = error
            except BrokerError as error:
                if error.code not in not_known:
                    self._answers(addr)
                    raise
                unknown = error
            else:
                self._answers(addr)
                return answer
        # "No such topic" from one NameServer says more than another NameServer's failure to answer.
        last = unknown or failure or stranger
        assert last is not None
        raise last

    def _answers(self, addr: str) -> None:
        """``addr`` has answered: ask it first from now on, unless it is no longer in the list."""
        if addr in self._addrs:
            self._good = addr
