"""A broker with a proxy: the order of start and stop, a proxy that ends, and the options that the proxy gets."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import pytest
import trio
from google.protobuf.runtime_version import VersionError
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.broker import cli
from skylark.broker.options import BrokerOptions
from skylark.broker.with_proxy import WithProxy, check_proxy, proxy_environ, proxy_given
from skylark.mqcommon.backoff import LONGEST_RESTART_PAUSE_S, STABLE_S
from skylark.mqcommon.errors import UserError


class Stage:
    """A broker and a proxy that do what the test says, and note what happens."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.stopping = trio.Event()
        self.broker_may_serve, self.broker_may_stop = trio.Event(), trio.Event()
        # For each proxy that was started: it may serve, and it fails.
        self._start, self.starts = trio.open_memory_channel[tuple[trio.Event, trio.Event]](10)
        self.ready: list[str] = []

    async def broker(self, stopping: trio.Event, ready: Callable[[str], None]) -> None:
        await self.broker_may_serve.wait()
        self.events.append("the broker serves")
        ready("serves at here")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def end_by_itself() -> None:
                    await self.broker_may_stop.wait()
                    scope.cancel()

                nursery.start_soon(end_by_itself)
                await stopping.wait()
                nursery.cancel_scope.cancel()
        self.events.append("the broker stopped")

    async def proxy(self, stopping: trio.Event, serves: Callable[[], None]) -> str:
        may_serve, fails = trio.Event(), trio.Event()
        self._start.send_nowait((may_serve, fails))
        self.events.append("the proxy starts")
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                await may_serve.wait()
                serves()

            async def end(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(serve)
            nursery.start_soon(end, stopping)
            nursery.start_soon(end, fails)
        self.events.append("the proxy stopped")
        return "" if stopping.is_set() and not fails.is_set() else "it is broken"

    async def run(self) -> None:
        await WithProxy(self.broker, self.proxy).run(self.stopping, self.ready.append)


async def test_the_proxy_starts_after_the_broker_and_stops_before_it() -> None:
    stage = Stage()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run)
        await wait_all_tasks_blocked()
        assert stage.events == []
        stage.broker_may_serve.set()
        await wait_all_tasks_blocked()
        assert stage.events == ["the broker serves", "the proxy starts"]
        assert stage.ready == []
        (await stage.starts.receive())[0].set()
        await wait_all_tasks_blocked()
        assert stage.ready == ["serves at here, with a proxy"]
        stage.stopping.set()
    assert stage.events[2:] == ["the proxy stopped", "the broker stopped"]


async def test_a_stop_before_the_broker_serves_starts_no_proxy() -> None:
    stage = Stage()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run)
        await wait_all_tasks_blocked()
        stage.stopping.set()
        stage.broker_may_serve.set()
    assert stage.events == ["the broker serves", "the broker stopped"]


async def test_a_proxy_that_ends_starts_again_after_a_pause_that_grows(autojump_clock: MockClock) -> None:
    stage = Stage()
    pauses_s: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run)
        stage.broker_may_serve.set()
        may_serve, fails = await stage.starts.receive()
        for number in range(11):
            may_serve.set()
            await wait_all_tasks_blocked()
            if number == 10:
                await trio.sleep(STABLE_S + 1)
            ended = trio.current_time()
            fails.set()
            may_serve, fails = await stage.starts.receive()
            pauses_s.append(trio.current_time() - ended)
        # Only the first start is the broker's start, too.
        assert stage.ready == ["serves at here, with a proxy"]
        stage.stopping.set()
    assert 8 * pauses_s[0] < max(pauses_s[:10]) <= LONGEST_RESTART_PAUSE_S
    assert pauses_s[10] < max(pauses_s[:10]) / 8, "a proxy that has served for long starts again soon"


async def test_a_proxy_that_does_not_come_up_ends_the_broker_with_the_reason() -> None:
    stage = Stage()
    with pytest.RaisesGroup(
        pytest.RaisesExc(UserError, match="^enableProxy: the proxy does not start: it is broken$"),
        flatten_subgroups=True,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.run)
            stage.broker_may_serve.set()
            (await stage.starts.receive())[1].set()


async def test_a_broker_that_ends_by_itself_ends_its_proxy() -> None:
    stage = Stage()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.run)
        stage.broker_may_serve.set()
        await wait_all_tasks_blocked()
        stage.broker_may_stop.set()
    assert stage.events[:3] == ["the broker serves", "the proxy starts", "the broker stopped"]


def options(**given: Any) -> BrokerOptions:
    return BrokerOptions(broker_name="b", enable_proxy=True, **{"namesrv_addr": "127.0.0.1:9876", **given})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"fetch_namesrv_addr_by_address_server": True}, "asks no address server"),
        ({"broker_instances": "2"}, "there must be one broker"),
        ({"listen_port": 0}, "and a listenPort"),
    ],
)
def test_a_broker_whose_proxy_cannot_find_it_needs_a_nameserver(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=f"enableProxy: .*{why}.*; set namesrvAddr"):
        check_proxy(options(namesrv_addr="", **given), is_process=False)


def test_a_missing_library_is_named_before_the_broker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(UserError, match=r"enableProxy needs Skylark's extra proxy \(.*google.protobuf"):
        check_proxy(options(), is_process=True)
    check_proxy(options(), is_process=False)


class Broken(ModuleType):
    """A module whose import fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__("near")
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("module", "why"),
    [(None, "skylark.mqproxy.near"), (Broken(VersionError("gencode is newer than the library")), "gencode is newer")],
)
def test_a_library_that_does_not_fit_is_named_before_the_broker_starts(
    monkeypatch: pytest.MonkeyPatch, module: Any, why: str
) -> None:
    monkeypatch.setitem(sys.modules, "skylark.mqproxy.near", module)
    broker: Any = "not used"
    with pytest.raises(UserError, match=rf"enableProxy needs Skylark's extra proxy \(.*{why}.*\): pip install"):
        cli._with_proxy(cast(Any, None), options(), broker, [])


def test_a_bug_in_the_proxys_modules_is_not_taken_for_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skylark.mqproxy.near", Broken(LookupError("a bug")))
    broker: Any = "not used"
    with pytest.raises(LookupError, match="a bug"):
        cli._with_proxy(cast(Any, None), options(), broker, [])


def test_a_proxy_without_a_file_of_its_own_listens_where_its_broker_does() -> None:
    assert proxy_given(options(bind_address="10.0.0.1")) == {"bind_address": "10.0.0.1"}
    given = options(bind_address="10.0.0.1", proxy_config_path="/etc/p.conf", grpc_server_port=1)
    assert proxy_given(given) == {"grpc_server_port": "1"}


def test_the_brokers_credentials_and_nameservers_are_in_the_proxys_environment() -> None:
    secret = '{"accessKey":"inner","secretKey":"hidden"}'
    given = options(inner_client_authentication_credentials=secret, plain_signature_addresses="10.0.0.5:9876")
    environ = proxy_environ(given)
    assert environ["ROCKETMQ_INNER_CLIENT_CREDENTIALS"] == secret
    assert environ["ROCKETMQ_PLAIN_SIGNATURE_ADDRESSES"] == "10.0.0.5:9876"
    assert environ["NAMESRV_ADDR"] == "127.0.0.1:9876"
    alone = options(namesrv_addr="", broker_ip1="10.0.0.7", listen_port=10911)
    assert proxy_environ(alone)["NAMESRV_ADDR"] == "10.0.0.7:10911"


def test_a_variable_of_the_broker_is_not_the_proxys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The health pages of both would be at one port, and the proxy would ask other NameServers than its broker."""
    for name in ("SKYLARK_HEALTH_PORT", "SKYLARK_NAMESRV_ADDR", "SKYLARK_LOCAL_SERVE_ADDR", "SKYLARK_BIND_ADDRESS"):
        monkeypatch.setenv(name, "8090")
    environ = proxy_environ(options())
    assert {name for name in environ if name.startswith("SKYLARK_")} == {
        "SKYLARK_LOCAL_SERVE_ADDR", "SKYLARK_BIND_ADDRESS",
    }  # fmt: skip
