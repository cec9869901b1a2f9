"""Which queue a message with a priority goes to."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.writing.stored_properties import with_priority
from skylark.mqcommon.message.properties import PRIORITY, decode_properties, encode_properties

USERS = st.dictionaries(st.sampled_from(["a", "KEYS", "TAGS", "x_SYS_MSG_PRIORITY_"]), st.sampled_from(["1", "7"]))
OTHER_TYPES = ({"DELAY": "3"}, {"TIMER_DELAY_SEC": "1"}, {"TIMER_DELAY_MS": "1"}, {"TIMER_DELIVER_MS": "1"})


@given(users=USERS, priority=st.integers(0, 10**12), queue_id=st.integers(-1, 20), queues=st.integers(0, 20))
def test_the_queue_is_the_priority_or_the_last(
    users: dict[str, str], priority: int, queue_id: int, queues: int
) -> None:
    raw = encode_properties({**users, PRIORITY: str(priority)}).encode()
    assert with_priority(raw, queue_id, queues) == (raw, min(priority, max(queues - 1, 0)))


@given(users=USERS, queue_id=st.integers(-1, 20), value=st.sampled_from([None, "-1", "1.0", "high", "+1"]))
def test_without_a_number_the_client_has_chosen(users: dict[str, str], queue_id: int, value: str | None) -> None:
    raw = encode_properties(users if value is None else {**users, PRIORITY: value}).encode()
    assert with_priority(raw, queue_id, 4) == (raw, queue_id)


@given(
    users=USERS, queue_id=st.integers(-1, 20),
    other=st.sampled_from([*OTHER_TYPES, {"__SHARDINGKEY": "k"}, {"TRAN_MSG": "true"}]),
)  # fmt: skip
def test_messages_of_other_types_have_none(users: dict[str, str], queue_id: int, other: dict[str, str]) -> None:
    raw = encode_properties({PRIORITY: "7", **users, **other}).encode()
    properties, found = with_priority(raw, queue_id, 10)
    assert (decode_properties(properties.decode()), found) == ({**users, **other}, queue_id)
