"""How groups consume topics (401), and which queues a member of a group gets when it asks the broker (400).

Java's consumers with clientRebalance=false ask, every 20 s and after each change of their group. Every broker gives the
same answer, as long as all members are connected to it: queues and members are sorted here, and the names of the
strategies are RocketMQ's.
Neighbours: meta/request_modes.py, registration/topic_queues.py.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from skylark.broker.meta.clients import Clients
from skylark.broker.meta.request_modes import RequestModes
from skylark.broker.meta.table import Durable, refused_when_not_stored
from skylark.broker.part import Part
from skylark.broker.registration.topic_queues import TopicQueues
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import check_group, check_topic, is_retry_topic
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import OpenClient, RemotingClient
from skylark.remoting.net.server import SlowHandler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.groups import (
    BROADCASTING,
    POP,
    PULL,
    QUERY_ASSIGNMENT,
    SET_MESSAGE_REQUEST_MODE,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from skylark.remoting.protocol.requests.pops import ANY_QUEUE

logger = logging.getLogger(__name__)


#: Called with sorted queues, the number of members and the place of one member; returns the queues of that member.
_Strategy = Callable[[Sequence[MessageQueue], int, int], Sequence[MessageQueue]]


def _averagely(queues: Sequence[MessageQueue], count: int, place: int) -> Sequence[MessageQueue]:
    """Neighbouring queues for each member; the first members get one more when the numbers do not divide."""
    size, more = divmod(len(queues), count)
    start = place * size + min(place, more)
    return queues[start : start + size + (place < more)]


def _by_circle(queues: Sequence[MessageQueue], count: int, place: int) -> Sequence[MessageQueue]:
    """Queues in turn, as cards are dealt."""
    return queues[place::count]


STRATEGIES: Mapping[str, _Strategy] = {"AVG": _averagely, "AVG_BY_CIRCLE": _by_circle}


def allocate(
    strategy: str, queues: Iterable[MessageQueue], members: Iterable[str], member: str
) -> Sequence[MessageQueue]:
    """The queues of ``member``; none when it is not among ``members``. ``strategy`` is a key of STRATEGIES."""
    every = sorted(set(members))
    if member not in every:
        return []
    return STRATEGIES[strategy](sorted(queues), len(every), every.index(member))


def allocate_for_pop(
    strategy: str, queues: Iterable[MessageQueue], members: Iterable[str], member: str, share: int
) -> Sequence[MessageQueue]:
    """The queues from which ``member`` pops: its own, and the queues of the ``share`` members after it, as in RocketMQ.

    If ``share`` is 0 or less, or covers all members, each member pops from all queues of all brokers: queue -1.
    """
    every, listed = sorted(set(members)), sorted(queues)
    if share <= 0 or share >= len(every) - 1:
        return list(dict.fromkeys(queue._replace(queue_id=ANY_QUEUE) for queue in listed))
    if member not in every:
        return []
    place = every.index(member)
    if len(every) > len(listed):
        return [listed[place % len(listed)]]
    shares = [every[(place + number) % len(every)] for number in range(share + 1)]
    return [queue for name in shares for queue in allocate(strategy, listed, every, name)]


class AssignmentHandlers(Part):
    """Assigns queues to members of groups (400), and sets how groups consume topics (401)."""

    def __init__(
        self, modes: RequestModes, clients: Clients, queues: TopicQueues, durable: Durable, open_client: OpenClient
    ) -> None:
        self._modes = modes
        self._clients = clients
        self._queues = queues
        self._durable = durable
        self._open_client = open_client
        # Made by `run`, before the broker serves requests.
        self._client: RemotingClient | None = None

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            QUERY_ASSIGNMENT.code: self.assigned,
            SET_MESSAGE_REQUEST_MODE.code: self.set_mode,
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a client for NameServers open, until cancelled."""
        async with self._open_client() as self._client:
            task_status.started()
            await trio.sleep_forever()

    async def set_mode(self, channel: Channel, request: Command) -> Command:
        """401: set the mode of a group and topic; answered when it is on disk."""
        mode = SET_MESSAGE_REQUEST_MODE.body(request)
        check_topic(mode.topic)
        check_group(mode.consumer_group)
        if is_retry_topic(mode.topic):
            raise RequestRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if mode.mode not in (PULL, POP):
            raise _bad(f"mode is PULL or POP, not {mode.mode!r}")
        with refused_when_not_stored():
            if self._modes.mode_of(mode.topic, mode.consumer_group) != mode:
                self._modes.put(mode)
                logger.info(
                    "group %s consumes topic %s by %s, set by %s",
                    mode.consumer_group,
                    mode.topic,
                    mode.mode,
                    channel.remote,
                )
            await self._durable()
        return request.respond()

    async def assigned(self, channel: Channel, request: Command) -> Command:
        """400: the queues of a member. An unknown strategy is refused: the member then allocates queues itself."""
        query = QUERY_ASSIGNMENT.body(request)
        check_topic(query.topic)
        check_group(query.consumer_group)
        if query.strategy_name not in STRATEGIES:
            raise _bad(f"strategyName is one of {', '.join(STRATEGIES)}, not {query.strategy_name!r}")
        assert self._client is not None
        queues = await self._queues.readable(self._client, query.topic)
        answer = QueryAssignmentResponseBody()
        if queues:
            mode = self._modes.mode_of(query.topic, query.consumer_group)
            share = mode.pop_share_queue_num if mode is not None and mode.mode == POP else None
            chosen = self._of_member(query, queues, share)
            name = PULL if share is None else POP
            answer.message_queue_assignments = [MessageQueueAssignment(queue, name) for queue in chosen]
        return answer_with(QUERY_ASSIGNMENT, request, answer, channel.max_frame_bytes)

    def _of_member(
        self, query: QueryAssignmentRequestBody, queues: list[MessageQueue], share: int | None
    ) -> list[MessageQueue]:
        """``share``: the popShareQueueNum of a group that pops; None for a group that pulls."""
        if query.message_model == BROADCASTING:
            return sorted(queues)
        group = self._clients.consumer_group(query.consumer_group)
        members = group.client_ids() if group is not None else []
        if share is not None:
            return list(allocate_for_pop(query.strategy_name, queues, members, query.client_id, share))
        return list(allocate(query.strategy_name, queues, members, query.client_id))


def _bad(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, reason)
