"""sendMessage -m: the trace of a message, as RocketMQ's clients write it."""

from mqcommon.errors import ConnectFailed
from tests.sdk.admin.fake import MASTER, World, run

SENT = ("sendMessage", "-t", "T", "-p", "hello", "-c", "TagA", "-k", "k1 k2")
UNIQUE = "FD00000000000000000000000000000249904E0E2F2A67A392290000"


def test_the_trace_of_a_message() -> None:
    world = World()
    assert run(world, *SENT, "-m", "true").exit_code == 0
    (message, _), (trace, _) = world.called("send")
    assert (message.topic, trace.topic) == ("T", "RMQ_SYS_TRACE_TOPIC")
    assert trace.keys == f"{UNIQUE} k1 k2"
    text = trace.body.decode()
    assert text[-1] == "\x02"
    kind, sent_ms, region, group, *rest = text[:-1].split("\x01")
    assert (kind, region, group) == ("Pub", "DefaultRegion", "TOOLS_PRODUCER")
    assert sent_ms.isdigit() and rest.pop(6).isdigit()
    store_host = "127.0.0.1:30911"
    assert rest == ["T", UNIQUE, "TagA", "k1 k2", store_host, "5", "0", "7F000001000078BF0000000000001016", "true"]


def test_no_trace_unless_asked_for() -> None:
    for option in ([], ["-m", "false"]):
        world = World()
        assert run(world, *SENT, *option).exit_code == 0
        assert len(world.called("send")) == 1


def test_the_message_is_sent_though_its_trace_is_not_stored() -> None:
    world = World(errors={("send_to", "RMQ_SYS_TRACE_TOPIC"): ConnectFailed(MASTER, "refused")})
    result = run(world, *SENT, "-m", "true")
    assert (result.exit_code, "SEND_OK" in result.stdout) == (0, True)
    assert result.stderr.startswith(f"mqadmin: the trace of the message is not stored: cannot connect to {MASTER}")
