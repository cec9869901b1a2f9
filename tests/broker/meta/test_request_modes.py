"""How groups consume topics: kept by the journal, and by slaves."""

from skylark.remoting.protocol.requests.groups import POP, PULL, MessageRequestMode
from tests.broker.meta.support import MetadataDir


def modes(meta: MetadataDir) -> dict[str, dict[str, MessageRequestMode]]:
    return meta.metadata.request_modes.by_topic()


def test_a_store_without_them_has_no_record_of_them() -> None:
    meta = MetadataDir()
    assert not [kind for kind, _ in meta.metadata.state() if kind.startswith("request")]


def test_a_slave_has_its_masters() -> None:
    master, slave = MetadataDir(), MetadataDir()
    master.metadata.request_modes.put(MessageRequestMode("g", "T", POP, 3))
    changes: list[int] = []
    slave.metadata.request_modes.put(MessageRequestMode("h", "T", PULL))
    slave.metadata.request_modes.on_change.append(lambda: changes.append(1))
    for _ in range(2):
        assert list(slave.metadata.request_modes.mirror(modes(master))) == []
    assert modes(slave) == modes(master)
    assert changes == [1], "the second time nothing was different"
    slave.kill()
    slave.journal.replace(slave.metadata.state())
    slave.power_loss()
    assert modes(slave) == modes(master)
    assert slave.metadata.request_modes.mode_of("T", "g") == MessageRequestMode("g", "T", POP, 3)
    assert slave.metadata.request_modes.mode_of("U", "g") is None
