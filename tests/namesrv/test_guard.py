"""A NameServer with access control: who gets in, and what happens when the file changes."""

import logging
from functools import partial
from pathlib import Path

import pytest
import trio

from skylark import Admin, Message, Producer
from skylark.broker.identity import identity_of, resolved
from skylark.broker.registration.registrar import Registrar
from skylark.broker.replication.known_master import KnownMaster
from skylark.mqcommon.errors import BrokerError, ConfigError, UserError
from skylark.namesrv import guard as guard_module
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.signature import Credentials
from tests.broker.meta.support import MetadataDir, options
from tests.namesrv.peer import Served, serve
from tests.namesrv.registrations import live_addrs
from tests.support.waiting import DEADLINE_S, until

ADMIN, USER = Credentials("administrator", "secret-1"), Credentials("application", "secret-2")
FILE = """
accounts:
- {accessKey: administrator, secretKey: secret-1, admin: true}
- {accessKey: application, secretKey: secret-2}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "plain_acl.yml"
    put(found, FILE)
    return found


def put(file: Path, text: str, mode: int = 0o600) -> None:
    file.touch(mode)
    file.write_text(text)
    file.chmod(mode)


@pytest.fixture
async def guarded(nursery: trio.Nursery, tmp_path: Path, file: Path) -> Served:
    return await serve(nursery, tmp_path, acl_enable=True, acl_file=str(file))


async def test_administrators_change_and_everybody_asks(guarded: Served) -> None:
    async with Admin(guarded.address, credentials=ADMIN) as admin:
        await admin.put_kv("n", "k", "v")
        await admin.namesrv_config()
    for who, why in ((None, "has no signature"), (USER, "account application has no admin: true")):
        async with Admin(guarded.address, credentials=who) as admin:
            with pytest.raises(BrokerError, match=why) as raised:
                await admin.put_kv("n", "k", "other")
            assert raised.value.code == ResponseCode.NO_PERMISSION
            assert await admin.get_kv("n", "k") == "v"
            assert (await admin.cluster_info()).broker_addr_table == {}


async def test_the_refused_client_of_a_closed_nameserver_says_so_at_once(
    nursery: trio.Nursery, tmp_path: Path, file: Path
) -> None:
    served = await serve(nursery, tmp_path, acl_enable=True, acl_file=str(file), acl_query_enable=True)
    async with Producer(
        served.address, send_timeout_ms=60_000, start_timeout_ms=None, credentials=Credentials("application", "x")
    ) as producer:
        failed = "Check signature failed for accessKey=application"
        with trio.fail_after(DEADLINE_S), pytest.raises(BrokerError, match=failed):
            await producer.send(Message("T", b"x"))
    async with Admin(served.address, credentials=USER) as admin:
        assert await admin.topic_list() is not None


BROKER = '{"accessKey":"broker","secretKey":"secret-3"}'


@pytest.mark.parametrize("way", ["an administrator", "a user of the conf", "a user at an open NameServer", "nobody"])
async def test_brokers_register_as_users_whom_the_conf_names(
    way: str, nursery: trio.Nursery, tmp_path: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    who, conf = BROKER, {"registration_users": f"[{BROKER}]"}
    if way == "an administrator":
        who, conf = '{"accessKey":"administrator","secretKey":"secret-1"}', {"acl_enable": True, "acl_file": str(file)}
    elif way == "a user at an open NameServer":
        conf = {}
    elif way == "nobody":
        who = ""
    served = await serve(nursery, tmp_path, **conf)
    meta = MetadataDir(
        resolved(
            options(
                namesrv_addr=served.address, inner_client_authentication_credentials=who, authentication_enabled=True
            )
        )
    )
    opens = partial(open_client, credentials=meta.options.inner_credentials)
    identity = identity_of(meta.options, 10911)
    registrar = Registrar(identity, meta.topics, meta.options, KnownMaster(), open_client=opens)
    async with trio.open_nursery() as inner:
        await inner.start(registrar.run)
        if way == "nobody":
            await until(lambda: "not registered at NameServer" in caplog.text, "it is refused")
        else:
            await until(lambda: bool(registrar.registered_addrs), "it is registered")
        assert live_addrs(served.namesrv.state.routes) == ([] if way == "nobody" else [identity.addr])
        await registrar.stop()
    assert live_addrs(served.namesrv.state.routes) == []
    assert caplog.text.count("takes registrations from anybody") == (way == "a user at an open NameServer")


async def test_the_file_is_read_again_and_a_broken_one_keeps_the_accounts(
    guarded: Served, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guarded.namesrv._guard
    assert guard is not None
    caplog.set_level(logging.INFO)
    await guard.reload()
    assert "accounts read" not in caplog.text, "the file is as it was"
    async with Admin(guarded.address, credentials=ADMIN) as admin:
        for broken, why in (("accounts: [", "not YAML"), (FILE, "its mode 0644 lets others use it")):
            put(file, broken, 0o644 if broken == FILE else 0o600)
            await guard.reload()
            await guard.reload()
            await admin.put_kv("n", "k", "v")
            assert caplog.text.count("the old ones stay in force") == 1 and why in caplog.text
            caplog.clear()
        put(file, FILE.replace("secret-1", "secret-3"))
        await guard.reload()
        assert "accounts read from" in caplog.text and "secret" not in caplog.text
        with pytest.raises(BrokerError, match="Check signature failed"):
            await admin.put_kv("n", "k", "v")


async def test_the_file_is_looked_at_again_and_again(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, tmp_path: Path, file: Path
) -> None:
    monkeypatch.setattr(guard_module, "RELOAD_INTERVAL_S", 0.01)
    served = await serve(nursery, tmp_path, acl_enable=True, acl_file=str(file))
    put(file, FILE.replace("administrator", "superuser"))
    guard = served.namesrv._guard
    assert guard is not None
    await until(lambda: "superuser" in guard._accounts, "the file is read")


async def test_refusals_are_logged_at_a_bounded_rate(guarded: Served, caplog: pytest.LogCaptureFixture) -> None:
    async with Admin(guarded.address) as admin:
        for _ in range(5):
            with pytest.raises(BrokerError):
                await admin.put_kv("n", "k", "v")
    assert caplog.text.count("refused: request 100 needs the signature of an administrator") == 1
    assert guarded.namesrv._guard is not None and guarded.namesrv._guard.refusals == 5


def test_without_a_usable_file_there_is_no_start(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ConfigError, match="aclFile: aclEnable needs the file with the accounts"):
        NamesrvOptions(acl_enable=True)
    file.chmod(0o640)
    with pytest.raises(UserError, match="run chmod 600"):
        Namesrv(NamesrvOptions(acl_enable=True, acl_file=str(file)))


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_nameserver_that_is_open_to_all_says_so(
    nursery: trio.Nursery,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_open: bool,
) -> None:
    if is_open:
        # Servers under test listen on loopback only.
        monkeypatch.setattr("skylark.namesrv.namesrv.is_any_address", lambda host: host == "127.0.0.1")
    await serve(nursery, tmp_path)
    assert caplog.text.count("set registrationUsers, or aclEnable=true and aclFile, or bindAddress") == is_open
