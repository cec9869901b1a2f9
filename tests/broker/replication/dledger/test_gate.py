"""Which callers count as members of a DLedger group that has a secret."""

from types import SimpleNamespace
from typing import cast

import pytest

from skylark.broker.replication.dledger.gate import GroupGate
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.plain_codes import plain_codes
from skylark.remoting.protocol.signature import Credentials, WholeSignatures, sign

CODE, OTHER_CODE = 7_110, 7_111


def is_heard(request: Command, signatures: WholeSignatures | None, allowed: str = "") -> bool:
    gate = GroupGate("group", b"theirs", None, "", plain_codes(allowed))
    channel = cast(Channel, SimpleNamespace(remote="10.0.0.7:30911", signatures=signatures))
    handler = gate.guarded({request.code: lambda channel, request: request.respond()})[request.code]
    try:
        return handler(channel, request) is not None
    except RequestRefused:
        return False


@pytest.fixture
def members() -> Credentials:
    credentials = GroupGate("group", b"theirs", None, "", plain_codes("")).credentials
    assert credentials is not None
    return credentials


async def test_a_whole_signature_is_heard_on_its_connection_only(members: Credentials) -> None:
    request = Command(CODE, {"a": "b"}, b"body")
    WholeSignatures("challenge", "10.0.0.8:40911").sign(request, members)
    assert is_heard(request, WholeSignatures("challenge", "10.0.0.8:40911"))
    for there in (WholeSignatures("another", "10.0.0.8:40911"), WholeSignatures("challenge", "10.0.0.9:40911"), None):
        assert not is_heard(request, there)


@pytest.mark.parametrize(
    ("allowed", "heard"),
    [
        ("", False),
        (f"group@10.0.0.7:{CODE}", True),
        (f"10.0.0.0/24:{CODE},{OTHER_CODE}", True),
        (f"group@10.0.0.7:{OTHER_CODE}", False),
        (f"group@10.0.0.8:{CODE}", False),
        (f"another:{CODE}", False),
    ],
)
async def test_rocketmqs_signature_is_heard_where_the_conf_says_so(
    members: Credentials, allowed: str, heard: bool
) -> None:
    """RocketMQ's signature does not cover the request code: a member's request could be replayed as another."""
    request = Command(CODE, {"a": "b"}, b"body")
    sign(request, members)
    assert is_heard(request, None, allowed) is heard


async def test_the_log_tells_a_member_of_an_older_version_from_a_stranger(
    members: Credentials, caplog: pytest.LogCaptureFixture
) -> None:
    request = Command(CODE, {}, b"")
    sign(request, members)
    assert not is_heard(request, None)
    assert f"add group@10.0.0.7:{CODE} to plainSignatureCodes" in caplog.text
    caplog.clear()
    assert not is_heard(Command(CODE, {}, b""), None)
    assert "is not a member of this DLedger group" in caplog.text and "plainSignatureCodes" not in caplog.text


async def test_nothing_but_the_secret_counts(members: Credentials) -> None:
    wrong = [Credentials("group", "guessed"), Credentials("another", members.secret_key)]
    for credentials in wrong:
        request = Command(CODE, {}, b"")
        WholeSignatures("challenge").sign(request, credentials)
        assert not is_heard(request, WholeSignatures("challenge"))
    assert not is_heard(Command(CODE, {}, b""), WholeSignatures("challenge"))
