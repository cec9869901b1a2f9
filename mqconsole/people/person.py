"""A person: a name, a role, and connections that sign all requests with that person's credentials.

Pages and changes ask through a person's `Admin`, with the functions of sdk/admin/reports/. Answers are kept for some
seconds, and pages with the same question wait for one answer: in this time a broker is asked once for each person,
for any number of windows.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final, Generic, TypeVar, cast

import trio

from skylark import Admin, Client, Producer, PullConsumer
from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import TOOLS_GROUP
from skylark.mqconsole.people.roles import Role
from skylark.remoting.net.tls.settings import Tls
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.admin.reports.problems import OnProblem, ReportProblem, ask_each
from skylark.sdk.endpoint import Answers

T = TypeVar("T")

#: The most answers that are kept for one person.
MOST_ANSWERS: Final = 128
#: How long a page waits for all its answers, in timeouts of one request.
PATIENCE: Final = 4


@lazy_dataclass(frozen=True, slots=True)
class Cluster:
    """Where the NameServers are, how to connect, and how long to wait for an answer."""

    namesrv: str
    timeout_ms: int
    tls: Tls | None = None
    #: How long an answer is kept, in seconds.
    keep_s: float = 5.0
    #: Servers that may get RocketMQ's signature of a person: see `Credentials`.
    plain_signature_addresses: str = ""


class ChangeFailed(UserError):
    """A change was not made everywhere; the text says what went wrong."""


async def with_problems(ask: Callable[[OnProblem], Awaitable[T]]) -> tuple[T, list[str]]:
    """The answer of ``ask``, and its problems as texts."""
    problems: list[ReportProblem] = []
    return await ask(problems.append), [str(one) for one in problems]


async def whole(act: Callable[[OnProblem], Awaitable[T]]) -> T:
    """The answer of ``act``. ChangeFailed when it reports a failure; warnings are ignored."""
    problems: list[ReportProblem] = []
    found = await act(problems.append)
    if failed := [one for one in problems if one.error is not None]:
        raise ChangeFailed("; ".join(str(one) for one in failed))
    return found


class _Answer(Generic[T]):
    """An answer, ready or awaited."""

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.value: T | None = None
        self.error: SkylarkError | None = None
        self.asked_s = trio.current_time()


class Person:
    """A person with open connections; `opened` makes one."""

    def __init__(
        self, name: str, role: Role, cluster: Cluster, client: Client, credentials: Credentials | None
    ) -> None:
        self.name = name
        self.role = role
        self._cluster = cluster
        self._client = client
        self._credentials = credentials
        self._answers: OrderedDict[str, _Answer[Any]] = OrderedDict()
        self.admin = Admin(client, timeout_ms=cluster.timeout_ms)

    async def masters(self, cluster: str) -> list[str]:
        """The address of the master of each set; UserError when no set has one."""
        addrs = await self.admin.brokers_of_cluster(cluster)
        if not addrs:
            raise UserError(f"cluster {cluster} has no master now; see the page Replicas")
        return addrs

    async def at_each(self, addrs: Sequence[str], doing: str, act: Callable[[str], Awaitable[object]]) -> None:
        """Await ``act`` for each address. ChangeFailed names ``doing``."""
        failed = (await ask_each(addrs, act)).errors.values()
        if failed:
            raise ChangeFailed("; ".join(str(ReportProblem(doing, error)) for error in failed))

    @property
    def timeout_ms(self) -> int:
        """How long an answer may take."""
        return self._cluster.timeout_ms

    async def each(self, keys: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> Answers[T]:
        """Await ``ask`` for each key, several at a time."""
        return await ask_each(keys, ask)

    @property
    def namesrv_addrs(self) -> list[str]:
        """Each NameServer."""
        return [addr for addr in self._cluster.namesrv.split(";") if addr]

    def admin_at(self, namesrv_addr: str) -> AbstractAsyncContextManager[Admin]:
        """An Admin for this NameServer only, for changes that must be made at each NameServer."""
        if namesrv_addr == self._cluster.namesrv:
            return Admin(self._client, timeout_ms=self._cluster.timeout_ms)
        timeout_ms, tls = self._cluster.timeout_ms, self._cluster.tls
        return Admin(namesrv_addr, timeout_ms=timeout_ms, credentials=self._credentials, tls=tls)

    def producer(self) -> Producer:
        """A producer, to be opened."""
        return _producer(self._client, "CONSOLE_PRODUCER", self._cluster.timeout_ms)

    def consumer(self) -> PullConsumer:
        """A consumer that only reads, to be opened."""
        return _consumer(self._client, TOOLS_GROUP, self._cluster.timeout_ms)

    @contextmanager
    def deadline(self) -> Iterator[None]:
        """Raises UserError when the body takes too long as a whole."""
        limit_s = self._cluster.timeout_ms / 1000 * PATIENCE
        try:
            with trio.fail_after(limit_s):
                yield
        except trio.TooSlowError:
            raise UserError(f"the brokers have not answered within {limit_s:g} s") from None

    async def recent(self, key: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of ``ask`` under this key from the last seconds, else a new answer."""
        # An awaited answer counts as recent, however long it takes: a second question would not be faster.
        answer: _Answer[T] | None = self._answers.get(key)
        if answer is None or (answer.ready.is_set() and trio.current_time() > answer.asked_s + self._cluster.keep_s):
            answer = await self._ask(key, ask)
        else:
            await answer.ready.wait()
        if answer.error is not None:
            raise answer.error
        return cast("T", answer.value)  # an answer that is ready without an error has its value

    async def _ask(self, key: str, ask: Callable[[], Awaitable[T]]) -> _Answer[T]:
        answer = self._answers[key] = _Answer[T]()
        self._answers.move_to_end(key)
        while len(self._answers) > MOST_ANSWERS:
            self._answers.popitem(last=False)
        try:
            answer.value = await ask()
        except SkylarkError as error:
            answer.error = error
        except BaseException:
            # Other pages may wait for this answer, though the browser that asked first has gone: end their wait.
            answer.error = UserError("the request was broken off; load the page again")
            self._answers.pop(key, None)
            raise
        finally:
            answer.ready.set()
        return answer

    def forget_answers(self) -> None:
        """Drop all kept answers, as this person has changed something."""
        self._answers.clear()


def _producer(client: Client, group: str, timeout_ms: int) -> Producer:
    return Producer(client, group=group, send_timeout_ms=timeout_ms, accept_weaker=True, start_timeout_ms=None)


def _consumer(client: Client, group: str, timeout_ms: int) -> PullConsumer:
    # No heartbeats: reading must not create a group.
    return PullConsumer(client, group=group, timeout_ms=timeout_ms, heartbeat=False, start_timeout_ms=None)
