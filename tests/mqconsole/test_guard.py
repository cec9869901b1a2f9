"""Who may do what, and what an attacker cannot do; over HTTP, with a broker that checks users and policies."""

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import trio
import trio.testing

from skylark import Admin, Credentials
from skylark.mqcommon.errors import BrokerError, ConfigError, UserError
from skylark.mqcommon.message.ids import encode_host, offset_msg_id
from skylark.mqconsole.options import ConsoleOptions
from skylark.mqconsole.people import people as people_module
from skylark.mqconsole.people.people import IDLE_S, MOST_SESSIONS, MOST_SESSIONS_OF_ONE, LoginFailed, People, Visit
from skylark.mqconsole.people.person import Cluster as Where
from skylark.mqconsole.people.person import Person
from skylark.mqconsole.people.roles import Role, role_of
from skylark.mqconsole.people.tokens import (
    FAILURES_COUNT_S,
    MOST_FAILURES,
    MOST_FAILURES_OF_ALL,
    MOST_REMEMBERED,
    Attempts,
    Tokens,
)
from skylark.mqconsole.watching.snapshot import Snapshot
from skylark.mqconsole.web.login import _next
from skylark.mqconsole.web.messages import messages_at_known_brokers
from skylark.mqconsole.web.site import Route
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from skylark.remoting.protocol.requests.routes import BrokerData, ClusterInfo
from skylark.sdk.testing import Cluster
from tests.mqconsole.consoles import Browser, browser, console, lonely_site
from tests.support.certificates import Authority
from tests.support.waiting import until

ROOT, OPERATOR, READER = "root", "operator", "reader"
SECRET = "a-secret-of-this-test"
SIGNED = json.dumps({"accessKey": ROOT, "secretKey": SECRET})
PEOPLE = {Role.NOBODY: "", Role.READER: READER, Role.OPERATOR: OPERATOR, Role.ADMIN: ROOT}
POLICIES = {
    READER: [("*", ["Get", "List"])],
    OPERATOR: [("*", ["Get", "List"]), ("Topic:*", ["All"]), ("Group:*", ["All"])],
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    options = {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": ROOT, "password": SECRET}),
        "innerClientAuthenticationCredentials": SIGNED,
    }
    with Cluster(1, options=options) as made:
        made.create_topic("orders")
        yield made


async def add_people(cluster: Cluster) -> None:
    addr = cluster.brokers[0].address
    async with Admin(cluster.nameserver, credentials=Credentials(ROOT, SECRET)) as admin:
        known = {user.username for user in await admin.list_users(addr)}
        for name, entries in POLICIES.items():
            if name not in known:
                await admin.create_user(addr, UserInfo(name, SECRET, "Normal"))
            policy = PolicyInfo("Custom", [PolicyEntryInfo(what, actions, None, "Allow") for what, actions in entries])
            await admin.update_acl(addr, AclInfo(f"User:{name}", [policy]))


@pytest.fixture
async def address(cluster: Cluster) -> AsyncIterator[str]:
    await add_people(cluster)
    async with console(cluster.nameserver, Credentials(ROOT, SECRET), login=True) as found:
        yield found


def all_routes() -> list[Route]:
    options = ConsoleOptions(login=True)
    people = People(Where("127.0.0.1:9", 1_000), None, login=True, session_s=60, secret=b"s", snapshot=Snapshot)
    return lonely_site(people, options).routes


def filled(rule: str) -> str:
    """An address about things that are not there."""
    for name in ("addr", "topic", "group", "msg_id"):
        rule = rule.replace(f"<{name}>", "127.0.0.1:9" if name == "addr" else "nothing")
    return rule


async def ask(who: Browser, route: Route) -> httpx.Response:
    if route.rule == "/events":
        async with who.client.stream("GET", "/events") as answer:
            return answer
    return await (who.get(filled(route.rule)) if route.method == "GET" else who.post(filled(route.rule)))


def is_refused(answer: httpx.Response) -> bool:
    """Whether the guard refused, before any request to a broker."""
    if answer.status_code == 303 and answer.headers["location"].startswith("/login"):
        return True
    return answer.status_code == 401 or (answer.status_code == 403 and "this needs the role" in answer.text)


async def test_every_route_asks_for_its_role(address: str) -> None:
    routes = all_routes()
    assert len(routes) > 45 and {route.role for route in routes} == {Role.NOBODY, Role.READER, Role.OPERATOR}
    wrong = []
    async with AsyncExitStack() as stack:
        for role, name in PEOPLE.items():
            who = await stack.enter_async_context(browser(address))
            if name:
                assert (await who.log_in(name, SECRET)).status_code == 303
            for route in routes:
                if route.rule in ("/login", "/logout"):
                    continue
                answer = await ask(who, route)
                if is_refused(answer) != (role < route.role):
                    wrong.append((role.title, route.method, route.rule, answer.status_code))
                assert answer.status_code < 500 or answer.status_code == 502, (route, answer.text)
    assert wrong == []


async def test_changes_need_the_role_operator_and_pages_that_of_a_reader() -> None:
    assert all(
        route.role is (Role.READER if route.method == "GET" else Role.OPERATOR)
        for route in all_routes()
        if route.rule not in ("/login", "/logout")
    )


async def test_roles_are_what_the_broker_says(address: str) -> None:
    for role, name in PEOPLE.items():
        if name:
            async with browser(address) as who:
                await who.log_in(name, SECRET)
                assert f"<small>{role.title}</small>" in (await who.get("/topics")).text


async def test_the_broker_has_the_last_word(address: str, cluster: Cluster) -> None:
    """The console acts with the person's own credentials: a reader sees no accounts, which only the root may list."""
    async with browser(address) as who:
        await who.log_in(OPERATOR, SECRET)
        made = await who.post("/topics", topic="by-operator", writeQueues="2")
        assert made.headers["location"] == "/topics/by-operator"
    async with Admin(cluster.nameserver, credentials=Credentials(ROOT, SECRET)) as admin:
        assert (await admin.topic_config(cluster.brokers[0].address, "by-operator")).write_queue_nums == 2
        policy = PolicyInfo("Custom", [PolicyEntryInfo("Topic:by-operator", ["Delete"], None, "Deny")])
        await admin.update_acl(cluster.brokers[0].address, AclInfo(f"User:{OPERATOR}", [policy]))
    async with browser(address) as who:
        await who.log_in(OPERATOR, SECRET)
        refused = await who.post("/topics/by-operator/delete", confirm="by-operator")
        assert refused.status_code == 303
        assert "no permission" in (await who.get("/")).text.lower()


async def test_changes_need_the_token_of_the_session(address: str) -> None:
    changes = [route for route in all_routes() if route.method == "POST"]
    async with browser(address) as other, browser(address) as who:
        await other.log_in(ROOT, SECRET)
        await who.log_in(ROOT, SECRET)
        own = who.token
        for route in changes:
            for token in (
                "",
                other.token,
                own[:-1] + ("A" if own[-1] != "A" else "B"),
                "x",
            ):
                who.token = token
                answer = await who.post(filled(route.rule))
                assert answer.status_code == 403, (route, token)
            answer = await who.client.post(
                filled(route.rule), data={"token": own}, headers={"Sec-Fetch-Site": "cross-site"}
            )
            assert answer.status_code == 403, route
        assert (await who.get("/api/topics")).status_code == 200


async def test_a_get_changes_nothing(address: str) -> None:
    async with browser(address) as who:
        await who.log_in(ROOT, SECRET)
        routes = all_routes()
        pages = {route.rule for route in routes if route.method == "GET"}
        for route in routes:
            if route.method == "POST" and route.rule not in pages:
                assert (await who.get(filled(route.rule))).status_code == 405, route


async def test_the_id_in_a_link_does_not_choose_where_the_console_connects(address: str) -> None:
    came = []

    async def stranger(stream: trio.SocketStream) -> None:
        came.append(await stream.receive_some())

    async with browser(address) as who, trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, stranger, 0, host="127.0.0.1"))
        await who.log_in(ROOT, SECRET)
        msg_id = offset_msg_id(encode_host("127.0.0.1", listeners[0].socket.getsockname()[1]), 1)
        answer = await who.get(f"/messages/{msg_id}")
        assert answer.status_code == 404 and "the NameServers do not know" in answer.text
        assert (await who.get(f"/messages/{msg_id}/body")).status_code == 404
        assert (await who.get(f"/api/messages/{msg_id}?topic=orders")).status_code == 404
        assert (await who.get(f"/api/messages?by=id&id={msg_id}")).json()["found"] == 0
        resent = await who.post(f"/messages/{msg_id}/resend", group="a-group", client="a-client")
        assert resent.status_code == 303 and "the NameServers do not know" in (await who.get("/")).text
        nursery.cancel_scope.cancel()
    assert came == []


async def test_ids_of_brokers_that_registered_a_host_name_are_known() -> None:
    msg_id = offset_msg_id(encode_host("127.0.0.1", 10911), 1)
    found = [object()]

    class Asked:
        async def cluster_info(self) -> ClusterInfo:
            return ClusterInfo({"broker-a": BrokerData(broker_addrs={0: "10.0.0.5:10911", 1: "localhost:10911"})})

        async def view_messages(self, offset_msg_id: str) -> list[object]:
            return found

    admin = cast(Admin, Asked())
    assert await messages_at_known_brokers(admin, msg_id) is found
    with pytest.raises(UserError, match=r"127\.0\.0\.1:10912"):
        await messages_at_known_brokers(admin, offset_msg_id(encode_host("127.0.0.1", 10912), 1))


async def test_a_login_makes_a_new_session(address: str) -> None:
    async with browser(address) as who, browser(address) as attacker:
        await attacker.get("/login")
        known = attacker.client.cookies["mqconsole"]
        who.client.cookies.set("mqconsole", known)
        await who.log_in(ROOT, SECRET)
        assert [cookie.value for cookie in who.client.cookies.jar if cookie.domain and cookie.value == known] == []
        assert (await attacker.get("/api/topics")).status_code == 401


async def test_a_cookie_that_was_not_made_here_is_nobody(address: str) -> None:
    async with browser(address) as who:
        await who.log_in(ROOT, SECRET)
        good = who.client.cookies["mqconsole"]
        session_id, _, signature = good.rpartition(".")
        async with browser(address) as other:
            for forged in (session_id, f"{session_id}.", f"{session_id}x.{signature}", f"x.{signature}"):
                answer = await other.client.get("/api/topics", headers={"Cookie": f"mqconsole={forged}"})
                assert answer.status_code == 401, forged
            assert (await other.client.get("/api/topics", headers={"Cookie": f"mqconsole={good}"})).status_code == 200


async def test_a_logout_ends_the_session(address: str) -> None:
    async with browser(address) as who:
        await who.log_in(ROOT, SECRET)
        cookie = who.client.cookies["mqconsole"]
        assert (await who.post("/logout")).headers["location"] == "/login"
        assert (await who.client.get("/api/topics", headers={"Cookie": f"mqconsole={cookie}"})).status_code == 401


async def test_strangers_cannot_send_large_forms(address: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"name=a"

    async with browser(address) as who:
        assert (await who.log_in("a", "x" * 20_000)).status_code == 413
        assert (await who.client.post("/login", content=chunks())).status_code == 413


async def test_the_session_of_a_disabled_user_ends(
    cluster: Cluster, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people_module, "RECHECK_S", 0.1)
    addr = cluster.brokers[0].address
    async with Admin(cluster.nameserver, credentials=Credentials(ROOT, SECRET)) as admin, browser(address) as who:
        await admin.create_user(addr, UserInfo("leaver", SECRET, "Super"))
        await who.log_in("leaver", SECRET)
        await admin.update_user(addr, UserInfo("leaver", None, "Normal"))

        async def is_reader() -> bool:
            return "<small>reader</small>" in (await who.get("/topics")).text

        await until(is_reader, "the new role counts")
        await admin.update_user(addr, UserInfo("leaver", None, None, "disable"))

        async def is_out() -> bool:
            return (await who.get("/api/topics")).status_code == 401

        await until(is_out, "the session has ended")


async def test_cookies_are_hidden_from_scripts_and_other_sites(address: str) -> None:
    async with browser(address) as who:
        set_cookie = (await who.get("/login")).headers["set-cookie"]
        assert "HttpOnly" in set_cookie and "SameSite=Lax" in set_cookie and "Path=/" in set_cookie


async def test_wrong_secrets_are_refused_and_counted(address: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    wrong = "a-wrong-secret-that-must-not-be-shown"
    async with browser(address) as who:
        for _ in range(MOST_FAILURES + 1):
            answer = await who.log_in("nobody", wrong)
            assert answer.status_code == 401
            assert wrong not in answer.text
        assert "too many attempts" in answer.text
        assert (await who.log_in(ROOT, SECRET)).status_code == 303, "others' failures lock nobody out"
    assert wrong not in caplog.text and SECRET not in caplog.text


async def test_what_can_be_no_name_is_asked_of_no_broker() -> None:
    """The console would sign the visitor's text, which a fake broker could use as the body of another request."""
    people = People(Where("127.0.0.1:9", 1_000), None, login=True, session_s=60, secret=b"s", snapshot=Snapshot)
    for name, secret in (("", "a-secret"), ("stranger1", "")):
        with pytest.raises(LoginFailed, match="give a name and a secret"):
            await people.enter(name, secret, "127.0.0.1")
    for name in ('stranger1{"password":"x"}', '{"userType":"Super"}', "a b", "a" * 256):
        with pytest.raises(LoginFailed, match="do not accept this name"):
            await people.enter(name, "a-secret", "127.0.0.1")
    with pytest.raises(LoginFailed, match="cannot check"):  # a name: brokers are looked for
        await people.enter("stranger1", "a-secret", "127.0.0.1")


async def test_attempts_that_are_made_at_once_are_counted(address: str) -> None:
    answers: list[str] = []

    async def try_once() -> None:
        async with browser(address) as who:
            answers.append((await who.log_in("guessed", "a-wrong-secret")).text)

    async with trio.open_nursery() as nursery:
        for _ in range(MOST_FAILURES + 5):
            nursery.start_soon(try_once)
    assert sum("too many attempts" in text for text in answers) == 5


async def test_no_page_and_no_log_has_a_secret(
    address: str, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with browser(address) as who:
        await who.log_in(ROOT, SECRET)
        texts = [
            (await ask(who, route)).text
            for route in all_routes()
            if route.method == "GET" and "<" not in route.rule and route.rule != "/events"
        ]
        texts.append((await who.get(f"/brokers/{cluster.brokers[0].address}?q=initAuth")).text)
    assert "initAuthenticationUser" in texts[-1]
    assert not any(SECRET in text for text in [*texts, caplog.text])


async def test_changes_leave_a_line_in_the_audit(address: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "skylark.mqconsole.audit")
    async with browser(address) as who:
        await who.log_in(OPERATOR, SECRET)
        await who.post("/topics", topic="audited", writeQueues="1")
        await who.post("/topics/audited/delete", confirm="another")
        await who.post("/topics", topic="evil\nname")
    lines = [record.getMessage() for record in caplog.records if record.name == "skylark.mqconsole.audit"]
    assert lines[:2] == [
        f"{OPERATOR!r} (operator) from 127.0.0.1: log_in '': done",
        f"{OPERATOR!r} (operator) from 127.0.0.1: create_topic 'audited': done",
    ]
    assert lines[2].startswith(
        f"{OPERATOR!r} (operator) from 127.0.0.1: remove_topic 'audited': refused: nothing was changed"
    )
    assert len(lines) == 4 and not any("\n" in line for line in lines)


async def test_every_answer_has_the_headers(address: str) -> None:
    async with browser(address) as who:
        await who.log_in(ROOT, SECRET)
        for path in ("/", "/api/topics", "/static/console.css", "/nothing", "/topics/nothing", "/topology.svg"):
            headers = (await who.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy, path
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


async def test_pages_have_no_scripts_or_styles_of_their_own(address: str) -> None:
    async with browser(address) as who:
        await who.log_in(ROOT, SECRET)
        for path in ("/", "/topics", "/groups", "/messages", "/doctor", "/accounts"):
            text = (await who.get(path)).text
            assert text.count("<script") == 1 and 'src="/static/console.js"' in text
            assert " style=" not in text and "<style" not in text and " onclick" not in text


async def test_with_https_the_cookie_never_leaves_it(cluster: Cluster, tmp_path: Path) -> None:
    await add_people(cluster)
    ca = Authority(tmp_path)
    cert_file, key_file = ca.sign("console")
    async with console(
        cluster.nameserver, Credentials(ROOT, SECRET), login=True, https_cert_file=cert_file, https_key_file=key_file
    ) as found:
        assert found.startswith("https://")
        async with browser(found, ca.ca_file) as who:
            page = await who.get("/login")
            assert page.headers["set-cookie"].startswith("__Host-mqconsole=") and "Secure" in page.headers["set-cookie"]
            assert page.headers["strict-transport-security"]
            assert (await who.log_in(READER, SECRET)).status_code == 303
            assert (await who.get("/api/topics")).status_code == 200


async def test_a_session_ends_when_it_is_not_used(autojump_clock: trio.testing.MockClock) -> None:
    people = People(Where("127.0.0.1:9", 1_000), None, login=True, session_s=3 * IDLE_S, secret=b"s", snapshot=Snapshot)
    person = cast(Person, object())
    people._visits["an-id"] = Visit(person, trio.current_time() + 3 * IDLE_S, trio.Event(), trio.current_time())
    for _ in range(2):
        await trio.sleep(IDLE_S - 1)
        assert people.find("an-id") is person
    await trio.sleep(IDLE_S / 2)
    # A window that is only open.
    assert people.find("an-id", is_use=False) is person
    await trio.sleep(IDLE_S / 2)
    assert people.find("an-id") is None
    people._visits["busy"] = Visit(person, trio.current_time() + IDLE_S / 2, trio.Event(), trio.current_time())
    await trio.sleep(IDLE_S / 2)
    assert people.find("busy") is None


@pytest.mark.parametrize(
    ("outcome", "log"),
    [
        (LoginFailed("no"), "brokers do not accept owner any more: the session ends"),
        (UserError("no master answers the console"), "whether owner may still log in is not known: no master"),
        (trio.TooSlowError("slow"), "whether owner may still log in is not known: slow"),
        (Role.READER, ""),
    ],
)
async def test_a_session_ends_only_when_a_broker_refuses_its_user(
    outcome: Exception | Role, log: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    people = People(Where("127.0.0.1:9", 1_000), None, login=True, session_s=60, secret=b"s", snapshot=Snapshot)
    person: Any = SimpleNamespace(name="owner", role=Role.ADMIN)
    visit = people._visits["an-id"] = Visit(person, trio.current_time() + 60, trio.Event(), trio.current_time())

    async def checked(credentials: Credentials) -> Role:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(people, "_checked", checked)
    await people._check_again("an-id", person, Credentials("owner", SECRET))
    is_refused = isinstance(outcome, LoginFailed)
    assert visit.ended.is_set() is is_refused and people.find("an-id") is (None if is_refused else person)
    assert person.role is (outcome if isinstance(outcome, Role) else Role.ADMIN)
    assert (log in caplog.text) if log else not caplog.messages


MAY_SEND = AclInfo(policies=[PolicyInfo(entries=[PolicyEntryInfo("*", ["Pub"], decision="Allow")])])
NOT_SUPPORTED, NO_PERMISSION = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), int(ResponseCode.NO_PERMISSION)


class Asked:
    """What a broker says of a user: its type and its right to the topic, or the codes of its refusals."""

    def __init__(self, user_type: str | int | None, is_allowed: bool | int, acl: AclInfo | None = None) -> None:
        self._user_type, self._is_allowed, self._acl = user_type, is_allowed, acl

    async def get_user(self, addr: str, name: str) -> Any:
        if isinstance(self._user_type, int):
            raise BrokerError(self._user_type, "no", addr)
        return None if self._user_type is None else SimpleNamespace(user_type=self._user_type)

    async def explain_access(self, addr: str, name: str, host: str, code: int, *, topic: str) -> Any:
        if type(self._is_allowed) is int:
            raise BrokerError(self._is_allowed, "no", addr)
        return SimpleNamespace(allowed=bool(topic) and self._is_allowed)

    async def get_acl(self, addr: str, subject: str) -> AclInfo | None:
        return self._acl


@pytest.mark.parametrize(
    ("asked", "role"),
    [
        (Asked("Super", NO_PERMISSION), Role.ADMIN),
        (Asked("Normal", True), Role.OPERATOR),
        (Asked("Normal", False), Role.READER),
        (Asked(None, False), Role.READER),
        (Asked(NOT_SUPPORTED, NOT_SUPPORTED), Role.READER),
        (Asked("Normal", NOT_SUPPORTED), Role.READER),
        (Asked("Normal", NOT_SUPPORTED, MAY_SEND), Role.OPERATOR),
        (Asked(NO_PERMISSION, True), None),
        (Asked("Normal", NO_PERMISSION), None),
    ],
)
async def test_a_role_is_what_the_broker_can_say_and_a_refusal_is_none(asked: Any, role: Role | None) -> None:
    if role is None:
        with pytest.raises(BrokerError):
            await role_of(asked, "b:1", "u", "127.0.0.1")
    else:
        assert await role_of(asked, "b:1", "u", "127.0.0.1") is role


def test_the_networks_of_logins_are_bounded() -> None:
    attempts = Attempts()
    for number in range(MOST_REMEMBERED + 1):
        attempts.succeeded(f"network {number}", "owner")
    for number in range(MOST_FAILURES_OF_ALL):
        attempts.failed(f"bad {number}", "owner", 100.0)
    assert attempts.must_wait("network 0", "owner", 100.0), "forgotten: others have logged in since"
    assert not attempts.must_wait("network 1", "owner", 100.0)


async def test_accounts_in_files_log_in_too(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    accounts = [
        {"accessKey": "the-admin", "secretKey": SECRET, "admin": True},
        {"accessKey": "the-shop", "secretKey": SECRET, "topicPerms": ["orders=PUB|SUB"]},
    ]
    file.write_text(json.dumps({"accounts": accounts}))
    file.chmod(0o600)
    own = Credentials("the-admin", SECRET)
    inner = json.dumps({"accessKey": own.access_key, "secretKey": SECRET})
    options = {"aclEnable": True, "aclFile": str(file), "innerClientAuthenticationCredentials": inner}
    with Cluster(1, options=options) as made:
        async with console(made.nameserver, own, login=True) as found:
            for name, role in (("the-admin", "admin"), ("the-shop", "reader")):
                async with browser(found) as who:
                    assert (await who.log_in(name, "another-secret")).status_code == 401
                    assert (await who.log_in(name, SECRET)).status_code == 303
                    assert f"<small>{role}</small>" in (await who.get("/topics")).text
                    page = await who.get("/accounts")
                    assert ("orders=PUB|SUB" in page.text) == (role == "admin")
                    assert SECRET not in page.text


async def test_a_cluster_that_checks_nothing_lets_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(1) as open_cluster:
        async with console(open_cluster.nameserver, login=True) as found, browser(found) as who:
            answer = await who.log_in("anybody", "anything")
            assert answer.status_code == 401
    assert "checks no signatures" in caplog.text


@pytest.mark.parametrize(
    ("location", "to"),
    [
        ("/topics?q=a", "/topics?q=a"), ("//evil.example", "/"), ("https://evil.example", "/"), ("/\\e.example", "/"),
        ("", "/"), ("/a\r\nb", "/"), ("javascript:alert(1)", "/"),
    ],
)  # fmt: skip
def test_a_login_leads_to_this_console_only(location: str, to: str) -> None:
    assert _next(location) == to


async def test_without_login_only_loopback_names_are_served() -> None:
    """The page of another site whose name leads to 127.0.0.1 must not reach the console."""
    with Cluster(1) as open_cluster:
        async with console(open_cluster.nameserver) as found, browser(found) as who:
            assert (await who.get("/")).status_code == 200
            for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:8088"):
                assert (await who.get("/", headers={"Host": host})).status_code == 421, host
            assert (await who.get("/", headers={"Host": "localhost:8088"})).status_code == 200
            assert (await who.get("/login")).status_code == 404


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bind_address": "0.0.0.0"}, "set login=true"),
        ({"bind_address": "0.0.0.0", "login": True}, "httpsCertFile"),
        ({"https_cert_file": "a.pem"}, "belong together"),
    ],
)
def test_off_loopback_it_wants_a_login_and_https(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ConsoleOptions(**options)


def test_off_loopback_with_both_it_starts() -> None:
    options = ConsoleOptions(bind_address="0.0.0.0", login=True, behind_https_proxy=True)
    assert options.is_https and options.allowed_hosts == frozenset()
    assert ConsoleOptions(host_names=" Console.example, b ").allowed_hosts == {"console.example", "b"}


def test_tokens_of_forms_are_no_cookies() -> None:
    tokens = Tokens(b"secret")
    assert tokens.session_id(tokens.cookie("an-id")) == "an-id"
    assert tokens.session_id(f"an-id.{tokens.form_token('an-id')}") is None
    assert not tokens.is_form_token("an-id", tokens.cookie("an-id").rpartition(".")[2])
    assert Tokens(b"another").session_id(tokens.cookie("an-id")) is None


def test_attempts_are_counted_for_a_while_and_bounded() -> None:
    attempts = Attempts()
    for _ in range(MOST_FAILURES):
        assert not attempts.must_wait("a", "name", 100.0)
        attempts.failed("a", "name", 100.0)
    assert attempts.must_wait("a", "name", 101.0)
    assert not attempts.must_wait("b", "name", 101.0), "the owner elsewhere"
    assert not attempts.must_wait("a", "other", 101.0), "others at the same address"
    assert not attempts.must_wait("a", "name", 101.0 + FAILURES_COUNT_S)
    attempts.uncount("a", "name")
    assert not attempts.must_wait("a", "name", 101.0)
    attempts.uncount("unknown", "unknown")
    attempts.failed("a", "name", 102.0)
    for number in range(MOST_REMEMBERED + 10):
        attempts.failed(f"host {number}", "x", 102.0)
    assert not attempts.must_wait("a", "name", 102.0)


def test_many_names_from_one_address_and_many_addresses_for_one_name_are_limited() -> None:
    attempts = Attempts()
    attempts.failed("home", "owner", 99.0)
    attempts.succeeded("home", "owner")
    for number in range(MOST_FAILURES_OF_ALL):
        assert not attempts.must_wait("bad", "another", 100.0)
        # A login of one's own clears nothing but its own failures.
        attempts.failed("bad", "me", 100.0)
        attempts.succeeded("bad", "me")
        attempts.failed("bad", f"name {number}", 100.0)
    assert attempts.must_wait("bad", "another", 100.0)
    for number in range(MOST_FAILURES_OF_ALL):
        attempts.failed(f"network {number}", "owner", 100.0)
    assert attempts.must_wait("new", "owner", 100.0)
    assert not attempts.must_wait("home", "owner", 100.0), "the owner has logged in there"


async def test_other_sites_may_link_to_the_console_and_load_nothing_from_it() -> None:
    followed = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    loaded = (
        {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, {},
    )  # fmt: skip
    async with console("127.0.0.1:9") as found, browser(found) as who:
        for site in ("cross-site", "same-site"):
            assert (await who.get("/", headers={"Sec-Fetch-Site": site, **followed})).status_code == 200
            for how in loaded:
                assert (await who.get("/topics", headers={"Sec-Fetch-Site": site, **how})).status_code == 403, how
        for site in ("same-origin", "none"):
            assert (await who.get("/", headers={"Sec-Fetch-Site": site, **loaded[1]})).status_code == 200


async def test_many_logins_of_one_person_end_nobody_elses_session() -> None:
    people = People(cast(Any, None), None, login=True, session_s=60.0, secret=b"s", snapshot=cast(Any, None))

    def enter(name: str, seen_s: float) -> str:
        people._make_room(name)
        session_id = f"{name} {seen_s}"
        person: Any = SimpleNamespace(name=name)
        people._visits[session_id] = Visit(person, 1_000.0, trio.Event(), seen_s)
        return session_id

    owner = enter("owner", 0.0)
    first = enter("greedy", 1.0)
    for number in range(MOST_SESSIONS_OF_ONE):
        enter("greedy", 2.0 + number)
    assert owner in people._visits and first not in people._visits
    for number in range(2 * MOST_SESSIONS):
        enter(f"greedy {number % 20}", 100.0 + number)
    assert owner in people._visits and len(people._visits) == MOST_SESSIONS
