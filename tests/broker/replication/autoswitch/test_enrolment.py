"""The identity of a broker with a Controller: its files, and that a crash at any step gives no id to two brokers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.autoswitch.enrolment import (
    EnrolmentStep,
    Identified,
    check_code,
    decode,
    encode,
    next_step,
)
from skylark.mqcommon.errors import ConfigError

names = st.text("abcXYZ%|_-.0189", min_size=1, max_size=12)
CODE = check_code("127.0.0.1:44011", 1795304987888)


def test_the_texts_are_rocketmqs() -> None:
    assert CODE == "127.0.0.1:44011;1795304987888"
    assert encode(Identified("DefaultCluster", "broker-a", 1)) == b"DefaultCluster#broker-a#1"
    assert encode(Identified("DefaultCluster", "broker-a", 1, CODE)) == b"DefaultCluster#broker-a#1#" + CODE.encode()


@given(names, names, st.integers(1, 2**63 - 1), st.sampled_from(["", CODE]))
def test_a_file_is_read_as_it_was_written(cluster: str, broker: str, broker_id: int, code: str) -> None:
    identified = Identified(cluster, broker, broker_id, code)
    assert decode(encode(identified), "f", cluster, broker) == identified


@pytest.mark.parametrize("data", [b"", b"c#b", b"c#b#x", b"c#b#0", b"c#b#1#2#3", b"\xff#b#1", b"#b#1"])
def test_a_damaged_file_is_refused_with_a_remedy(data: bytes) -> None:
    with pytest.raises(ConfigError, match="takes a new id"):
        decode(data, "f", "c", "b")


def test_the_store_of_another_broker_is_refused() -> None:
    with pytest.raises(ConfigError, match="belongs to broker b of cluster c"):
        decode(b"c#b#1", "f", "c", "other")


class Controller:
    """Gives ids as RocketMQ's does."""

    def __init__(self) -> None:
        self.codes: dict[int, str] = {}

    def next_id(self) -> int:
        return max(self.codes, default=0) + 1

    def apply(self, broker_id: int, code: str) -> bool:
        return self.codes.setdefault(broker_id, code) == code


class Files:
    """The two files of a broker, which survive its crashes."""

    def __init__(self, name: int) -> None:
        self.kept: Identified | None = None
        self.temporary: Identified | None = None
        self.code = check_code("h", name)


# Whose turn, and whether it crashes after the Controller did its part.
turns = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40)


@given(turns)
def test_no_two_brokers_get_the_same_id_wherever_they_crash(history: list[tuple[int, bool]]) -> None:
    controller, brokers = Controller(), [Files(number) for number in range(3)]
    for number, crashes in history + [(number, False) for number in range(3) for _ in range(8)]:
        files = brokers[number]
        step = next_step(files.kept, files.temporary)
        if step is EnrolmentStep.ASK_NEXT_ID:
            broker_id = controller.next_id()
            if not crashes:
                files.temporary = Identified("c", "b", broker_id, files.code)
        elif step is EnrolmentStep.APPLY and files.temporary is not None:
            is_mine = controller.apply(files.temporary.broker_id, files.temporary.check_code)
            if not crashes:
                files.kept = files.temporary._replace(check_code="") if is_mine else None
                files.temporary = None
    ids = [files.kept.broker_id for files in brokers if files.kept is not None]
    assert len(set(ids)) == 3
    assert set(ids) == set(controller.codes)
