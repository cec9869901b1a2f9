"""Each path of the console and each method of the proxy gives each identity what `expected_web.txt` says."""

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from skylark.mqconsole import console as console_module
from skylark.mqconsole.web.site import Site
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2
from skylark.sdk.testing import Cluster
from tests.intruder import wire
from tests.intruder.requests import HANDLED, REFUSED
from tests.intruder.targets import FOREIGN, INNER, LITTLE, MARK, OWN, THEIRS, WHO
from tests.intruder.wire import Page, Signer, proto
from tests.mqconsole.consoles import console
from tests.support.proxies import proxy

TABLE = Path(__file__).with_name("expected_web.txt")
CONSOLE, PROXY = "console", "proxy"
COOKIE = re.compile(r"mqconsole=([^;]+)")
TOKEN = re.compile(rb'name="token" value="([^"]+)"')
#: After these the session of whoever sent them is over.
SESSION_ENDS = ("POST /login", "POST /logout")
MSG_ID = b"0102FC0000000175170B1ABA8000000000"
# Statuses of answers by gRPC.
UNAUTHORIZED, FORBIDDEN = 40100, 40300


def table(port: str) -> dict[str, str]:
    """By path or method: one letter for each identity."""
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{port} "):
            _, *what, letters = line.split()
            found[" ".join(what)] = letters
    return found


# --- the console


class Visitor:
    """Somebody with a browser of their own making."""

    def __init__(self, addr: str, cookie: str = "", token: str = "") -> None:
        self._addr = addr
        self._cookie = cookie
        self._token = token

    async def get(self, path: str, *, is_stream: bool = False) -> Page:
        headers = {"Cookie": f"mqconsole={self._cookie}"} if self._cookie else {}
        page = await wire.http(self._addr, "GET", path, headers, is_stream=is_stream)
        if found := COOKIE.search(page.headers.get("set-cookie", "")):
            self._cookie = found[1]
        if token := TOKEN.search(page.body):
            self._token = token[1].decode()
        return page

    async def post(self, path: str, *, has_token: bool = True, **fields: str) -> Page:
        form = {**fields, **({"token": self._token} if has_token else {})}
        page = await wire.http(self._addr, "POST", path, {"Cookie": f"mqconsole={self._cookie}"}, form)
        if found := COOKIE.search(page.headers.get("set-cookie", "")):
            self._cookie = found[1]
        return page

    async def log_in(self, who: Signer) -> Page:
        await self.get("/login")
        page = await self.post("/login", name=quote(who.name), secret=quote(who.secret))
        if page.status == 303:
            await self.get("/topics")
        return page


def is_refused(page: Page) -> bool:
    """By the guard: nobody is logged in, the role is too low, or the form has no token of this session."""
    if page.status == 303 and page.headers["location"].startswith("/login"):
        return True
    return page.status in (401, 403)


async def test_each_path_of_the_console(guarded: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    sites: list[Site] = []
    make_site = console_module.make_site

    def noting(*given: Any) -> Site:
        sites.append(make_site(*given))
        return sites[0]

    monkeypatch.setattr(console_module, "make_site", noting)
    rows = table(CONSOLE)
    async with console(guarded.nameserver, WHO, login=True) as url:
        addr = url.removeprefix("http://")
        rules = {
            f"{method} {rule.rule}": rule.rule
            for rule in sites[0].app.url_map.iter_rules()
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        }
        stranger, foreign, little = Visitor(addr), Visitor(addr), Visitor(addr)
        for signer in FOREIGN:
            assert (await foreign.log_in(signer)).status == 401
        forged = Visitor(addr, cookie="a-session.that-nobody-signed")
        assert (await little.log_in(LITTLE)).status == 303
        got: dict[str, str] = {}
        for what, rule in sorted(rules.items()):
            got[what] = ""
            for who in (stranger, foreign, forged, little):
                if what in SESSION_ENDS and who is little:
                    who = Visitor(addr)
                    assert (await who.log_in(LITTLE)).status == 303
                page = await ask(who, what, rule, guarded)
                got[what] += REFUSED if is_refused(page) else HANDLED
                assert MARK not in page.body, what
        assert got == rows
        for what, rule in rules.items():
            if what.startswith("POST"):
                page = await little.post(filled(rule, guarded), has_token=False)
                assert page.status in (401, 403), what
        for method in ("PUT", "DELETE", "TRACE"):
            assert (await wire.http(addr, method, "/topics")).status == 405
        for path in ("/debug", "/static/../site.py", "/static/%2e%2e%2fweb%2fsite.py", "/..%2f..%2fetc/passwd"):
            assert (await stranger.get(path)).status == 404


def filled(rule: str, cluster: Cluster) -> str:
    values = {"addr": cluster.brokers[0].address, "name": "console.js"}
    return re.sub(r"<(\w+)>", lambda found: values.get(found[1], THEIRS), rule)


async def ask(who: Visitor, what: str, rule: str, cluster: Cluster) -> Page:
    path = filled(rule, cluster)
    if what.startswith("POST"):
        return await who.post(path, topic=THEIRS, group=THEIRS, body="x", queues="1", name="nobody", secret="nothing")
    return await who.get(f"{path}?topic={THEIRS}&group={THEIRS}&key={THEIRS}", is_stream=rule == "/events")


# --- the proxy


def about(name: str) -> dict[str, bytes]:
    """A request for each method, about the topic and the group ``name``."""
    it = proto((2, name.encode()))
    queue = proto((1, it), (4, proto((1, b"broker-a"))))
    every = proto((1, 1), (2, b"*"))
    second = proto((1, 1))
    # Popped in the far future, so that it has not expired.
    handle = b"0 9000000000000 10000 0 0 broker-a 0 0 0"
    recall = urlsafe_b64encode(f"v1 {name} broker-a 9000000000000 {MSG_ID.decode()}".encode())
    system = proto((3, MSG_ID), (5, 1))
    subscription = proto((1, it), (2, proto((1, it), (2, every))))
    return {
        "QueryRoute": proto((1, it)),
        "QueryAssignment": proto((1, it), (2, it)),
        "SendMessage": proto((1, proto((1, it), (3, system), (4, b"x")))),
        "EndTransaction": proto((1, it), (2, MSG_ID), (3, b"0 0 broker-a"), (4, 1), (5, 1)),
        "RecallMessage": proto((1, it), (2, recall)),
        "ReceiveMessage": proto((1, it), (2, queue), (3, every), (4, 1), (5, proto((1, 10))), (7, second)),
        "AckMessage": proto((1, it), (2, it), (3, proto((1, MSG_ID), (2, handle)))),
        "ChangeInvisibleDuration": proto((1, it), (2, it), (3, handle), (4, proto((1, 10)))),
        "ForwardMessageToDeadLetterQueue": proto((1, it), (2, it), (3, handle), (4, MSG_ID), (5, 1), (6, 16)),
        "PullMessage": proto((1, it), (2, queue), (4, 1), (5, every), (6, second)),
        "UpdateOffset": proto((1, it), (2, queue), (3, 0)),
        "GetOffset": proto((1, it), (2, queue)),
        "QueryOffset": proto((1, queue), (2, 1)),
        "Heartbeat": proto((1, it), (2, 3)),
        "NotifyClientTermination": proto((1, it)),
        "Telemetry": proto((2, proto((1, 3), (6, subscription)))),
        "SyncLiteSubscription": proto((2, it), (3, it)),
    }


def status_in(answer: bytes) -> int:
    """The code of the first status in an answer, of which it is the first field."""
    status = next(value for number, value in wire.fields_in(answer) if number == 1)
    assert isinstance(status, bytes)
    return next(value for number, value in wire.fields_in(status) if number == 1 and isinstance(value, int))


def outcome(made: Callable[[], Any]) -> str:
    """One letter for a call, whose answer or answers ``made`` returns."""
    try:
        answer = made()
        first = answer if isinstance(answer, bytes) else next(iter(answer))
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        assert error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED), error
        return REFUSED
    assert MARK not in first
    return REFUSED if status_in(first) in (UNAUTHORIZED, FORBIDDEN) else HANDLED


def test_each_method_of_the_proxy(guarded: Cluster) -> None:
    rows = table(PROXY)
    methods = messaging_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods
    assert {method.name for method in methods} == {*rows}
    identities = ((THEIRS, None), (THEIRS, FOREIGN[0]), (THEIRS, FOREIGN[1]), (THEIRS, LITTLE), (OWN, LITTLE))
    got = {}
    options = {"grpc_client_consumer_min_long_polling_timeout_millis": 100}
    with (
        proxy(guarded.nameserver, inner_client_authentication_credentials=INNER, **options) as served,
        served.channel() as channel,
    ):
        for method in methods:
            letters = ""
            for number, (name, who) in enumerate(identities):
                metadata = wire.call_metadata(f"intruder-{number}", who)
                letters += outcome(call_of(channel, method, about(name)[method.name], metadata))
            got[method.name] = letters
        unknown = channel.unary_unary(f"/{SERVICE}/DropEverything")
        with pytest.raises(grpc.RpcError) as refused:
            unknown(b"", metadata=wire.call_metadata("intruder", LITTLE), timeout=wire.TIMEOUT_S)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert got == rows


def call_of(channel: grpc.Channel, method: Any, request: bytes, metadata: list[tuple[str, str]]) -> Callable[[], Any]:
    """Makes the call, of bytes to bytes."""
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    made = getattr(channel, kind)(f"/{SERVICE}/{method.name}")
    given = iter([request]) if method.client_streaming else request
    return lambda: made(given, metadata=metadata, timeout=wire.TIMEOUT_S)
