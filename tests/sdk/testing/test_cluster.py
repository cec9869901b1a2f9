"""Clusters inside this process, and the faults of their nodes."""

import asyncio
import threading
from pathlib import Path

import pytest
import trio

from skylark import Admin, Message, Producer, PullConsumer, PullStatus, blocking
from skylark.mqcommon.errors import ConfigError, RouteNotFound, SendFailed, SkylarkError
from skylark.sdk.testing import Cluster, Node
from tests.support.forks import in_child
from tests.support.waiting import DEADLINE_S

QUEUES = 2


def stored(cluster: Cluster, topic: str = "orders") -> list[bytes]:
    """The bodies of all messages of the topic."""
    with blocking.PullConsumer(cluster.nameserver, group="reader") as consumer:
        return sorted(
            message.body
            for queue in consumer.message_queues(topic)
            for message in consumer.messages(queue, 0, consumer.max_offset(queue))
        )


def nodes_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("skylark-")]


def test_messages_are_sent_and_read() -> None:
    with Cluster() as cluster:
        cluster.create_topic("orders", queues=QUEUES)
        with blocking.Producer(cluster.nameserver) as producer:
            assert len(producer.queues("orders")) == QUEUES
            producer.send_many("orders", [b"a", b"b", b"c"])
        assert stored(cluster) == [b"a", b"b", b"c"]


async def test_in_trio() -> None:
    async with Cluster() as cluster, Producer(cluster.nameserver) as producer:
        cluster.create_topic("orders")
        sent = await producer.send(Message("orders", b"x"))
        async with PullConsumer(cluster.nameserver, group="g") as consumer:
            result = await consumer.pull(sent.queue, sent.queue_offset, wait_ms=5_000)
            assert result.status is PullStatus.FOUND


def test_in_asyncio() -> None:
    async def use() -> str:
        async with Cluster() as cluster:
            return cluster.nameserver

    assert asyncio.run(use()).startswith("127.0.0.1:")


def test_a_start_while_the_cluster_closes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    errors: list[BaseException] = []

    async def never_answered(admin: Admin) -> None:
        asked.set()
        await trio.sleep_forever()

    def start(node: Node) -> None:
        try:
            node.start()
        except BaseException as error:
            errors.append(error)

    with Cluster() as cluster:
        (broker,) = cluster.brokers
        broker.stop()
        monkeypatch.setattr(Admin, "cluster_info", never_answered)
        starting = threading.Thread(target=start, args=(broker,))
        starting.start()
        assert asked.wait(DEADLINE_S)
    starting.join()
    (error,) = errors
    assert isinstance(error, RuntimeError) and "its cluster closes, or was closed" in str(error)
    with pytest.raises(RuntimeError, match="its cluster closes, or was closed"):
        broker.start()


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Cluster() as cluster:
        assert len(nodes_threads()) == 2 and list(tmp_path.iterdir())
        cluster.brokers[0].freeze()
    assert nodes_threads() == [] and list(tmp_path.iterdir()) == []
    assert not cluster.brokers[0].is_running


def test_files_stay_in_a_home_of_your_own(tmp_path: Path) -> None:
    with Cluster(home=tmp_path) as cluster, blocking.Producer(cluster.nameserver) as producer:
        cluster.create_topic("orders")
        producer.send(Message("orders", b"x"))
    assert (tmp_path / "broker-a" / "commitlog").is_dir()
    with Cluster(home=tmp_path) as cluster:
        assert stored(cluster) == [b"x"]


# --- faults


def end_by_kill(node: Node) -> None:
    node.kill()


def end_by_stop(node: Node) -> None:
    node.stop()


def end_frozen(node: Node) -> None:
    node.freeze()
    node.kill()


@pytest.mark.parametrize("end", [end_by_kill, end_by_stop, end_frozen])
def test_acknowledged_messages_survive_a_restart_on_the_same_port(end) -> None:  # type: ignore[no-untyped-def]
    with Cluster() as cluster, blocking.Producer(cluster.nameserver) as producer:
        cluster.create_topic("orders")
        (broker,) = cluster.brokers
        bodies = [b"%d" % number for number in range(300)]
        producer.send_many("orders", bodies)
        address = broker.address
        end(broker)
        assert not broker.is_running
        with blocking.Admin(cluster.nameserver) as admin, pytest.raises(RouteNotFound):
            admin.topic_route("orders")
        broker.start()
        assert broker.address == address and stored(cluster) == sorted(bodies)
        producer.send(Message("orders", b"more"))


def test_a_kill_flushes_nothing_and_a_stop_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "skylark.broker")
    with Cluster() as cluster, blocking.Producer(cluster.nameserver) as producer:
        (broker,) = cluster.brokers
        producer.send(Message("orders", b"x"))
        broker.stop()
        broker.start()
        assert "recovered after" not in caplog.text
        broker.kill()
        broker.start()
        assert "recovered after a crash" in caplog.text


def test_a_kill_that_fails_keeps_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    with Cluster() as cluster:
        (broker,) = cluster.brokers
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
            patch.setattr("shutil.copytree", full)
            broker.kill()
        assert (broker.directory / "commitlog").exists() or (broker.directory / "config").exists()
        broker.start()


def test_a_frozen_broker_answers_nothing_until_it_thaws() -> None:
    with Cluster() as cluster, blocking.Producer(cluster.nameserver, send_timeout_ms=60_000) as producer:
        cluster.create_topic("orders")
        (broker,) = cluster.brokers
        producer.send(Message("orders", b"before"))
        broker.freeze()
        broker.freeze()
        assert broker.is_frozen and broker.is_running
        with pytest.raises(SendFailed):
            producer.send(Message("orders", b"lost or late"), timeout_ms=50)
        sending = threading.Thread(target=producer.send, args=(Message("orders", b"after"),))
        sending.start()
        with pytest.raises(RuntimeError, match=r"broker-a is frozen.*thaw\(\) it first"):
            broker.stop()
        broker.thaw()
        sending.join()
        assert {b"before", b"after"} <= set(stored(cluster))


def test_one_broker_of_two_goes_on() -> None:
    with Cluster(brokers=2) as cluster, blocking.Producer(cluster.nameserver) as producer:
        cluster.create_topic("orders")
        one, other = cluster.brokers
        one.kill()
        assert {producer.send(Message("orders", b"x")).queue.broker_name for _ in range(8)} == {other.name}
        one.start()
        cluster.create_topic("payments")
        assert {queue.broker_name for queue in producer.queues("payments")} == {one.name, other.name}


def test_slaves_have_what_a_sync_master_acknowledged() -> None:
    with Cluster(slaves=1, options={"brokerRole": "SYNC_MASTER"}) as cluster:
        cluster.create_topic("orders")
        with blocking.Producer(cluster.nameserver) as producer:
            producer.send(Message("orders", b"x"))
            (master,), (slave,) = cluster.brokers, cluster.slaves
            assert slave.name == "broker-a-slave-1"
            slave.stop()
            slave.start()
            master.kill()
            master.start()
        assert stored(cluster) == [b"x"]


def test_a_nameserver_may_go_and_come() -> None:
    with Cluster(nameservers=2) as cluster:
        first, _ = cluster.nameservers
        first.kill()
        cluster.create_topic("orders")
        first.start()
        assert cluster.nameserver.count(";") == 1 and stored(cluster) == []


# --- mistakes


def test_mistakes_are_told() -> None:
    cluster = Cluster()
    with pytest.raises(RuntimeError, match="open the cluster with"):
        _ = cluster.nameserver
    with cluster:
        (broker,) = cluster.brokers
        with pytest.raises(RuntimeError, match="broker-a runs already"):
            broker.start()
        broker.stop()
        with pytest.raises(RuntimeError, match=r"broker-a does not run: start\(\) it first"):
            broker.kill()
        with pytest.raises(RuntimeError, match="opened before"):
            cluster.__enter__()
        cluster.nameservers[0].stop()
        with pytest.raises(RuntimeError, match="no NameServer of this cluster runs"):
            cluster.create_topic("orders")
    with pytest.raises(ValueError, match="0 NameServers"):
        Cluster(nameservers=0)
    with pytest.raises(TypeError, match="brokers must be an int"):
        Cluster("2")  # type: ignore[arg-type]


def test_a_wrong_option_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match="did you mean flushDiskType"), Cluster(options={"flushDiskTyp": "x"}):
        pass
    assert list(tmp_path.iterdir()) == [] and nodes_threads() == []


def test_a_broker_that_cannot_start_is_told(tmp_path: Path) -> None:
    (tmp_path / "broker-a").mkdir()
    (tmp_path / "broker-a" / "commitlog").write_text("not a folder")
    with pytest.raises((SkylarkError, OSError)), Cluster(home=tmp_path):
        pass
    assert nodes_threads() == []


@pytest.mark.process
def test_a_child_of_a_fork_leaves_the_cluster_alone(tmp_path: Path) -> None:
    with Cluster() as cluster:

        def child() -> str:
            cluster.__exit__(None, None, None)
            with pytest.raises(RuntimeError, match="before a fork"):
                cluster.brokers[0].kill()
            return "left alone"

        assert in_child(child) == "left alone"
        assert cluster.brokers[0].directory.is_dir()
        with blocking.Producer(cluster.nameserver) as producer:
            producer.send(Message("orders", b"x"))


def test_calls_from_inside_of_trio_do_not_need_its_loop() -> None:
    async def use() -> None:
        async with Cluster() as cluster:
            cluster.create_topic("orders")
            cluster.brokers[0].kill()
            cluster.brokers[0].start()

    trio.run(use)
