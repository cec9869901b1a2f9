"""What connected consumers have pulled."""

from typing import Any

from skylark.broker.meta import pull_positions
from skylark.broker.meta.pull_positions import furthest_pulled, record_pull
from skylark.remoting.net.channel import Channel
from tests.support.caller import Caller


def channel() -> Channel:
    return Caller().channel


async def test_the_furthest_of_all_members() -> None:
    one, other, silent = channel(), channel(), channel()
    record_pull(one, "g", "T", 0, 5)
    record_pull(one, "g", "T", 0, 7)
    record_pull(one, "g", "U", 0, 100)
    record_pull(one, "h", "T", 0, 100)
    record_pull(other, "g", "T", 0, 6)
    record_pull(other, "g", "T", 1, 2)
    assert furthest_pulled([one, other, silent], "g", "T") == {0: 7, 1: 2}
    assert furthest_pulled([other], "g", "T") == {0: 6, 1: 2}
    assert furthest_pulled([], "g", "T") == {}


async def test_a_connection_notes_so_many_queues(monkeypatch: Any) -> None:
    monkeypatch.setattr(pull_positions, "MAX_QUEUES", 3)
    one = channel()
    for queue_id in range(5):
        record_pull(one, "g", "T", queue_id, 1)
    record_pull(one, "g", "U", 0, 1)
    record_pull(one, "g", "T", 0, 9)
    assert furthest_pulled([one], "g", "T") == {0: 9, 1: 1, 2: 1}
    assert furthest_pulled([one], "g", "U") == {}
