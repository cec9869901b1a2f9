"""Whether a message may come in: each reason against it, several at once, and each way into the store."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.observe.stats import BrokerStats
from skylark.broker.store.queue.batch_records import RowBatch
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.admission import Admission, Reason
from skylark.broker.writing.elected import Elected
from skylark.broker.writing.stored_properties import Incoming
from skylark.broker.writing.writer import BatchFields, Writer
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import DLQ_RESENT_TOPIC
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.sends import NOT_SAFE_HERE
from tests.broker.meta.support import MetadataDir, options
from tests.broker.store.support import HOST, open_store
from tests.broker.writing.support import make_sends

NOT_AVAILABLE = "service not available now. It may be caused by one of the following reasons: "
NO_LEASE = (
    14,
    NOT_AVAILABLE + "the Controller has not confirmed lately that this broker is the master, or its DLedger group has"
    " elected another one",
)
TOO_FEW = (1, "in-sync replicas not enough")
FULL = (2, "[REJECTREQUEST]system busy, start flow control for a while: 5 sends wait for slaves")
ANSWERS = {
    Reason.NOT_MASTER: (14, NOT_AVAILABLE + "messages are put to the slave"),
    Reason.TOPIC_DELETION: (14, "the deletion of a topic is finished first, a moment only"),
    Reason.BUCKET: (14, "the store lacks messages that its bucket has: see the log of the broker"),
    Reason.DRAIN: (14, "this broker is drained and takes no messages: refresh the route"),
    Reason.DISK_FULL: (14, NOT_AVAILABLE + "the broker's disk is full: why"),
    Reason.ENTRIES_UNWRITTEN: (14, NOT_AVAILABLE + "the broker's disk is full: why"),
    Reason.ENTRIES_WAITING: (14, NOT_AVAILABLE + "the broker's disk is full: why"),
}
OF_ROLE = [Reason.NOT_MASTER, Reason.TOPIC_DELETION, Reason.BUCKET]
OF_ROOM = [Reason.DISK_FULL, Reason.ENTRIES_UNWRITTEN, Reason.ENTRIES_WAITING]
WAITS_NOT = b"WAIT\x01false\x02"

Verdict = tuple[int, str] | None


class Slaves:
    """The slaves and the lease of a master, as a test wants them."""

    max_waiting = 5

    def __init__(self, is_leased: bool | None = None, waiting: int = 0, in_sync_to: int = 1 << 40) -> None:
        """``is_leased``: None without Controller mode."""
        self.elected = None if is_leased is None else Elected(lambda: 1.0)
        if self.elected is not None:
            self.elected.lease_until = 2.0 if is_leased else 1.0
        self._waiting = waiting
        self._in_sync_to = in_sync_to

    def __len__(self) -> int:
        return self._waiting

    def are_enough(self, end: int) -> bool:
        return end <= self._in_sync_to

    def are_too_few(self, end: int) -> bool:
        return not self.are_enough(end)


def verdict(check: Callable[..., None], *asked: Any) -> Verdict:
    try:
        check(*asked)
    except RequestRefused as refused:
        return refused.code, refused.remark
    return None


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_refuses_what_it_says_until_it_is_cleared(reason: Reason) -> None:
    admission, told = Admission(), ANSWERS[reason]
    admission.refuse(reason, "why")
    assert not admission.is_open and admission.holds(reason) and admission.why(reason) == "why"
    assert admission.takes_none is (reason in OF_ROLE)
    assert admission.no_room == ("why" if reason in OF_ROOM else "")
    assert verdict(admission.check_own) == (told if reason in OF_ROLE else None)
    assert verdict(admission.check_message, 0, b"") == (told if reason in OF_ROLE else None)
    assert verdict(admission.check_send, "t") == (None if reason in OF_ROOM else told)
    assert verdict(admission.check_send, DLQ_RESENT_TOPIC) == (told if reason in OF_ROLE else None)
    assert verdict(admission.check_room) == (told if reason in OF_ROOM else None)
    admission.allow(reason)
    assert admission.is_open and not admission.holds(reason) and admission.why(reason) == ""


def test_a_reason_without_a_text_is_told_by_its_name() -> None:
    admission = Admission()
    admission.refuse(Reason.ENTRIES_UNWRITTEN, str(OSError()))
    assert admission.no_room == "ENTRIES_UNWRITTEN"


@pytest.mark.parametrize(
    ("slaves", "told", "told_who_waits_not"),
    [
        (Slaves(), None, None),
        (Slaves(is_leased=False, waiting=5, in_sync_to=0), NO_LEASE, NO_LEASE),
        (Slaves(is_leased=True, waiting=4), None, None),
        (Slaves(waiting=5, in_sync_to=0), FULL, None),
        (Slaves(in_sync_to=100), None, None),
        (Slaves(in_sync_to=99), TOO_FEW, None),
    ],
)
def test_clients_messages_come_in_only_if_they_can_become_safe(
    slaves: Slaves, told: Verdict, told_who_waits_not: Verdict
) -> None:
    admission = Admission(slaves)
    assert not admission.is_open
    assert verdict(admission.check_message, 100, b"") == told
    assert verdict(admission.check_message, 100, WAITS_NOT) == told_who_waits_not
    # What the broker delivers itself is stored without slaves, too.
    assert verdict(admission.check_own) is None and verdict(admission.check_room) is None
    admission.refuse(Reason.NOT_MASTER)
    assert verdict(admission.check_message, 100, b"") == ANSWERS[Reason.NOT_MASTER]


def test_who_wants_a_safe_copy_or_none_is_told_when_slaves_lack() -> None:
    admission = Admission(Slaves(in_sync_to=99))
    assert verdict(admission.check_safe, 99) is None
    assert verdict(admission.check_safe, 100) == (1, NOT_SAFE_HERE)
    assert verdict(Admission().check_safe, 100) is None


@pytest.mark.parametrize(("cleared", "left"), list(permutations(Reason, 2)))
def test_a_reason_that_is_cleared_leaves_the_others(cleared: Reason, left: Reason) -> None:
    admission = Admission()
    admission.refuse(cleared, "cleared")
    admission.refuse(left, "left")
    admission.allow(cleared)
    assert not admission.is_open and admission.holds(left) and not admission.holds(cleared)
    assert admission.no_room == ("left" if left in OF_ROOM else "")
    assert verdict(admission.check_send, "t") == (None if left in OF_ROOM else ANSWERS[left])


EVENTS = st.lists(st.tuples(st.sampled_from(Reason), st.sampled_from(["", "one", "two"])))


@given(EVENTS, st.sampled_from([None, Slaves(), Slaves(is_leased=False), Slaves(waiting=5), Slaves(in_sync_to=0)]))
def test_of_several_reasons_the_first_of_the_role_or_the_oldest_of_the_disk_is_told(
    events: list[tuple[Reason, str]], slaves: Slaves | None
) -> None:
    admission, held = Admission(slaves), dict[Reason, str]()
    for reason, why in events:
        if why:
            admission.refuse(reason, why)
            held[reason] = why
        else:
            admission.allow(reason)
            held.pop(reason, None)
    of_role = next((ANSWERS[reason] for reason in OF_ROLE if reason in held), None)
    of_send = of_role or (ANSWERS[Reason.DRAIN] if Reason.DRAIN in held else None)
    why = next((why for reason, why in held.items() if reason in OF_ROOM), "")
    of_room = (14, f"{NOT_AVAILABLE}the broker's disk is full: {why}") if why else None
    of_slaves = None if slaves is None else verdict(Admission(slaves).check_message, 1, b"")
    assert verdict(admission.check_own) == of_role
    assert verdict(admission.check_send, "t") == of_send
    assert verdict(admission.check_send, DLQ_RESENT_TOPIC) == of_role
    assert verdict(admission.check_message, 1, b"") == (of_role or of_slaves)
    assert verdict(admission.check_room) == of_room
    assert admission.no_room == why and admission.takes_none is (of_role is not None)
    # The flag spares all checks, so it may only be set when none of them would refuse.
    assert admission.is_open is (slaves is None and not held)
    assert admission.takes_sends is (of_send is None)


# --- the ways into the store

FIELDS = BatchFields("t", 0, 0, 1, HOST, 0)
INNER = BatchFields("batches", 0, 0, 1, HOST, 0)
DELAYED = b"DELAY\x012\x02"
ROWS: list[tuple[int, bytes, bytes]] = [(0, b"x", b""), (0, b"y", DELAYED)]
CLIENTS_WAYS: dict[str, Callable[[Writer], object]] = {
    "a message": lambda writer: writer.put("t", 0, b"x", b"", 0, 0, 1, HOST),
    "a delayed message": lambda writer: writer.put("t", 0, b"x", DELAYED, 0, 0, 1, HOST),
    "a half": lambda writer: writer.put("t", 0, b"x", b"TRAN_MSG\x01true\x02PGROUP\x01g\x02", 0, 4, 1, HOST),
    "a batch": lambda writer: writer.put_batch(FIELDS, RowBatch([(0, b"x", b"")])),
    "a batch of which some are delayed": lambda writer: writer.place_rows(FIELDS, ROWS),
    "an inner batch": lambda writer: writer.put_inner(INNER, b"x", 1),
}
OWN_WAY = "a message that was stored before"
WAYS = {**CLIENTS_WAYS, OWN_WAY: lambda writer: writer.put_again(Incoming("t", 0, b"x", b"", 0, 0, 1, HOST, 0))}


def desk(**changes: object) -> tuple[MessageStore, Writer]:
    meta = MetadataDir(options(**changes))
    store = open_store(meta.fs, meta.clock)
    store.queues.use_kinds(lambda topic: topic == "batches")
    stats = BrokerStats(meta.clock, now=lambda: 0.0)
    return store, make_sends(store, meta.topics, meta.options, meta.clock, stats=stats).writer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reason", Reason)
def test_no_way_leads_past_a_reason(reason: Reason, way: str) -> None:
    store, writer = desk()
    writer.admission.refuse(reason, "why")
    if reason is Reason.DRAIN:
        WAYS[way](writer)  # a drained broker refuses requests of producers, before they are messages
    else:
        assert verdict(WAYS[way], writer) == ANSWERS[reason]
        assert store.log.end == 0
        writer.admission.allow(reason)
        WAYS[way](writer)
    assert store.log.end > 0
    store.close()


@pytest.mark.parametrize("way", WAYS)
def test_too_few_slaves_refuse_clients_only(way: str) -> None:
    store, writer = desk(broker_role="SYNC_MASTER", in_sync_replicas=2, total_replicas=2, min_in_sync_replicas=2)
    assert verdict(WAYS[way], writer) == (TOO_FEW if way in CLIENTS_WAYS else None)
    assert (store.log.end == 0) is (way in CLIENTS_WAYS)
    store.close()


@pytest.mark.parametrize(
    ("body", "properties", "text"),
    [
        (b"x" * 5_000_000, b"", "the body has 5000000 bytes"),
        (b"x", b"INNER_MULTI_DISPATCH\x01wrong\x02", "the names of light queues begin with"),
        (b"x", b"INNER_MULTI_DISPATCH\x01wrong\x02" + DELAYED, "the names of light queues begin with"),
    ],
)
def test_a_message_that_is_never_taken_is_told_so_on_a_full_disk_too(body: bytes, properties: bytes, text: str) -> None:
    store, writer = desk(enable_multi_dispatch=True)
    writer.admission.refuse(Reason.DISK_FULL, "why")
    with pytest.raises(RequestRefused) as refused:
        writer.put("t", 0, body, properties, 0, 0, 1, HOST)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL and text in refused.value.remark
    assert writer.times.failed == 0
    with pytest.raises(RequestRefused, match="disk is full: why"):
        writer.put("t", 0, b"x", b"", 0, 0, 1, HOST)
    assert writer.times.failed == 1
    store.close()
