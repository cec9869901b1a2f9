"""Held requests for changes of routes, and probes of silent brokers: pure, and on a NameServer."""

from pathlib import Path
from unittest.mock import patch

import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.namesrv import watches
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.namesrv.probes import ANSWER_S, INTERVAL_S, SILENT_S, Probes
from skylark.namesrv.watches import RouteChanges, Watch, Watches
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import encode
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.namesrv_api import RouteNews, watch_routes
from tests.namesrv.peer import Peer
from tests.support.waiting import until

TOPICS = st.sets(st.sampled_from("abcdef"), min_size=1)


class WatchMachine(RuleBasedStateMachine):
    """Clients that watch, are told, and watch on from there, never miss a change of a topic of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = RouteChanges()
        self.watches: Watches[int] = Watches()
        # Each topic's version; what each client knows: (count, version by topic).
        self.versions = dict.fromkeys("abcdef", 0)
        self.known: dict[int, tuple[int, dict[str, int]]] = {}

    @rule(topics=TOPICS)
    def change(self, topics: set[str]) -> None:
        for topic in topics:
            self.versions[topic] += 1
        before = self.changes.count
        self.changes.add(topics)
        since = self.changes.since(before)
        concerned = self.watches.concerned(since or [])
        assert {watch.token: set(changed) for watch, changed in concerned.items()} == {
            watch.token: topics & set(watch.topics) for watch in self.watches.all() if topics & set(watch.topics)
        }
        for watch in concerned:
            self.watches.pop(watch.token)
            self.learn(watch.token, watch.topics)

    def learn(self, client: int, topics: tuple[str, ...]) -> None:
        self.known[client] = self.changes.count, {topic: self.versions[topic] for topic in topics}

    @rule(client=st.integers(0, 3), topics=TOPICS)
    def watch(self, client: int, topics: set[str]) -> None:
        self.watches.pop(client)
        wanted = tuple(sorted(topics))
        count, _ = self.known.get(client, (-1, {}))
        since = self.changes.since(count)
        if client not in self.known or since is None or any(topic in change for change in since for topic in wanted):
            self.learn(client, wanted)
        else:
            self.known[client] = count, {topic: self.versions[topic] for topic in wanted}
        assert self.watches.hold(Watch(client, wanted))

    @rule(client=st.integers(0, 3))
    def leave(self, client: int) -> None:
        self.watches.pop(client)

    @invariant()
    def who_waits_knows_all(self) -> None:
        for watch in self.watches.all():
            assert self.known[watch.token][1] == {topic: self.versions[topic] for topic in watch.topics}

    def teardown(self) -> None:
        for client in range(4):
            self.watches.pop(client)
        assert not self.watches._by_topic
        assert not self.watches._entries


TestWatches = WatchMachine.TestCase


def test_old_changes_are_forgotten_and_nobody_is_told_that_there_were_none() -> None:
    changes = RouteChanges()
    with patch.object(watches, "MOST_TOPICS", 10):
        for number in range(8):
            changes.add({f"{number}", f"{number} too"})
        assert changes.since(8) == []
        assert changes.since(3) == [{f"{number}", f"{number} too"} for number in range(3, 8)]
        assert changes.since(2) is None
        assert changes.since(9) is None  # of another run
        changes.add({str(number) for number in range(11)})
        assert changes.since(8) is None
        assert changes.since(9) == []


def test_too_many_topics_are_not_held() -> None:
    held: Watches[int] = Watches()
    assert not held.hold(Watch(1, tuple(map(str, range(watches.TOPICS_A_WATCH + 1)))))
    with patch.object(watches, "MOST_WATCHED", 3):
        assert held.hold(Watch(1, ("a", "b")))
        assert not held.hold(Watch(2, ("a", "b")))
    assert len(held) == 1


@given(st.lists(st.tuples(st.floats(0.1, INTERVAL_S + 1), st.booleans()), max_size=60))
def test_only_a_broker_that_answers_nothing_is_taken_for_dead(steps: list[tuple[float, bool]]) -> None:
    probes: Probes[str] = Probes()
    now = last = asked = 0.0
    for pause, answers in steps:
        now += pause
        verdict = probes.poll(now, [("broker", last)])
        if verdict.dead:
            assert now - last > ANSWER_S
            assert last <= asked <= now - ANSWER_S
        if verdict.ask:
            assert now - last >= SILENT_S
            asked = now
            if answers:
                last = now
    # Looked at in time, a broker that has stopped is found within ten seconds.
    end = now + 10
    while now < end and not probes.poll(now, [("broker", last)]).dead:
        now += INTERVAL_S
    assert now < end


def test_a_name_server_that_stood_still_asks_again_first() -> None:
    probes: Probes[str] = Probes()
    probes.poll(0.5, [("broker", 0.0)])
    assert probes.poll(0.5 + SILENT_S + 60, [("broker", 0.0)]).dead == []
    now = 0.5 + SILENT_S + 60.5
    assert probes.poll(now, [("broker", 0.0)]) == (["broker"], [])


async def serve(nursery: trio.Nursery, tmp_path: Path) -> tuple[Namesrv, str]:
    options = NamesrvOptions(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    namesrv = Namesrv(options)
    return namesrv, await nursery.start(namesrv.run)


async def test_a_held_watch_is_answered_by_a_change(nursery: trio.Nursery, tmp_path: Path) -> None:
    namesrv, address = await serve(nursery, tmp_path)
    broker = Peer(await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2])))
    news: list[RouteNews] = []

    async def watch(client: RemotingClient, version: str, *topics: str) -> None:
        news.append(await watch_routes(Endpoint(client, address, 5_000), topics, version))

    async with open_client() as client, open_client() as other:
        await watch(client, "", "t1")
        first = news.pop()
        assert (first.topics, first.is_held) == ([], True)
        async with trio.open_nursery() as waiting:
            waiting.start_soon(watch, client, first.version, "t1", "missing")
            waiting.start_soon(watch, other, first.version, "t2", "t3")
            await until(lambda: len(namesrv._watches) == 2)
            await broker.register()
        assert sorted(one.topics or [] for one in news) == [["t1"], ["t2"]]
        # What changed before the watch came is told at once, and of another run everything may have changed.
        await watch(client, first.version, "t1")
        await watch(client, "0123456789abcdef:0", "t1")
        await watch(client, "nonsense", "t1")
        assert [one.topics for one in news[2:]] == [["t1"], None, None]
        # A second watch of a connection takes the place of the first, and a stop answers all.
        async with trio.open_nursery() as waiting:
            waiting.start_soon(watch, client, news[-1].version, "t1")
            await until(lambda: len(namesrv._watches) == 1)
            waiting.start_soon(watch, client, news[-1].version, "t2")
            await until(lambda: len(news) == 6)
            await namesrv.stop()
        assert [one.topics for one in news[5:]] == [[], []]
    await broker.stream.aclose()


async def test_a_watch_ends_at_its_deadline(nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path) -> None:
    _, address = await serve(nursery, tmp_path)
    async with open_client() as client, trio.open_nursery() as waiting:
        at = Endpoint(client, address, 5_000)
        version = (await watch_routes(at, ["t1"], "")).version
        news: list[RouteNews] = []

        async def watch() -> None:
            news.append(await watch_routes(at, ["t1"], version))

        waiting.start_soon(watch)
        for _ in range(27):
            await wait_all_tasks_blocked()
            mock_clock.jump(1)
        await wait_all_tasks_blocked()
        assert [one.topics for one in news] == [[]]


async def test_a_stopped_broker_of_ours_leaves_the_routes_in_ten_seconds(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path
) -> None:
    """A broker that answers stays, whatever it answers; so does RocketMQ's broker, which is not asked."""
    _, address = await serve(nursery, tmp_path)
    port = int(address.rpartition(":")[2])
    stopped, living, java = [Peer(await trio.open_tcp_stream("127.0.0.1", port)) for _ in range(3)]
    await stopped.register("127.0.0.1:1", "s", "s2", name="stopped", skylark="cbor")
    await living.register("127.0.0.1:2", "l", "l2", name="living", skylark="cbor")
    await java.register("127.0.0.1:3", "j", "j2", name="java")

    async def answer() -> None:
        connection = Connection()
        while data := await living.stream.receive_some():
            for request in connection.receive_data(data):
                await living.stream.send_all(encode(request.respond(3, "not supported")))

    nursery.start_soon(answer)
    for _ in range(20):
        await wait_all_tasks_blocked()
        mock_clock.jump(INTERVAL_S)
    await wait_all_tasks_blocked()
    assert await java.topics() == ["j", "j2", "l", "l2"]
    nursery.cancel_scope.cancel()


async def test_a_watch_for_which_there_is_no_room_is_answered_at_once(nursery: trio.Nursery, tmp_path: Path) -> None:
    _, address = await serve(nursery, tmp_path)
    async with open_client() as client:
        at = Endpoint(client, address, 5_000)
        version = (await watch_routes(at, ["t1"], "")).version
        with patch.object(watches, "MOST_WATCHED", 0):
            news = await watch_routes(at, ["t1"], version)
        assert (news.topics, news.is_held) == ([], False)


async def test_after_more_changes_than_are_remembered_all_watches_are_answered(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    namesrv, address = await serve(nursery, tmp_path)
    news: list[RouteNews] = []
    async with open_client() as client, trio.open_nursery() as waiting:
        at = Endpoint(client, address, 5_000)
        version = (await watch_routes(at, ["missing"], "")).version

        async def watch() -> None:
            news.append(await watch_routes(at, ["missing"], version))

        waiting.start_soon(watch)
        await until(lambda: len(namesrv._watches) == 1, "a watch is held")
        with patch.object(watches, "MOST_TOPICS", 0):
            broker = Peer(await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2])))
            await broker.register()
    assert [one.topics for one in news] == [["missing"]]
    await broker.stream.aclose()
