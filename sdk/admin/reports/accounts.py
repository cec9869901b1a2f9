"""Accounts in files of brokers (ACL 1.0), and why a client is refused. Reports have no secrets."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import field, replace

from skylark.mqcommon.errors import InvalidArgument, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.requests.acl import AccessExplanation, PlainAccessConfig
from skylark.remoting.protocol.requests.table import BY_NAME
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.reports.report import FLAT, named


@lazy_dataclass(frozen=True, slots=True)
class AccountFile:
    """The version of a file of accounts; ``file`` is empty for brokers before RocketMQ 4.9.1, which have one file."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    file: str
    counter: int
    changed_ms: int = field(metadata=named("timestamp"))


@lazy_dataclass(frozen=True, slots=True)
class BrokerAccounts:
    """The accounts of a broker, without secrets, and the addresses of clients that need no account."""

    broker_addr: str
    global_white_addrs: Sequence[str]
    accounts: Sequence[PlainAccessConfig]


@lazy_dataclass(frozen=True, slots=True)
class AccessAnswer:
    """Whether a broker would serve a request of a client, and which rule decides."""

    broker_addr: str
    explanation: AccessExplanation = field(metadata=FLAT)


async def account_files(admin: Admin, addrs: Iterable[str]) -> list[AccountFile]:
    """The files of accounts of the brokers at ``addrs``."""
    rows = []
    for addr in addrs:
        found = await admin.account_versions(addr)
        files = json.loads(found.all_acl_file_version or "{}") or {"": json.loads(found.version)}
        place = (found.cluster_name, found.broker_name, found.broker_addr)
        rows += [
            AccountFile(*place, file, version.get("counter", 0), version.get("timestamp", 0))
            for file, version in sorted(files.items())
        ]
    return rows


async def accounts_at(admin: Admin, addrs: Iterable[str]) -> list[BrokerAccounts]:
    """The accounts of the brokers at ``addrs``. The secrets in answers of RocketMQ's brokers are left out."""
    rows = []
    for addr in addrs:
        found = await admin.accounts(addr)
        known = [replace(account, secret_key=None) for account in found.plain_access_configs]
        rows.append(BrokerAccounts(addr, found.global_white_addrs, known))
    return rows


def request_code(text: str) -> int:
    """The code of a request that is given by its number or its name; InvalidArgument when there is none."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    if (named_so := BY_NAME.get(text.upper())) is None:
        raise InvalidArgument(f"{text!r} is no request: give its code, or a name as SEND_MESSAGE_V2")
    return named_so.code


async def explain_access(
    admin: Admin,
    addrs: Iterable[str],
    access_key: str,
    remote_address: str,
    *,
    topic: str | None = None,
    group: str | None = None,
    request: int | None = None,
) -> list[AccessAnswer]:
    """The brokers' decisions about a request of an account (or user), by the rules that are in force.

    ``remote_address`` is the client's address. ``request`` is a code; by default a send to the topic, or a pull of the
    group.
    """
    if request is None:
        if topic is None and group is None:
            raise UserError("give a topic, a group, or a request")
        request = request_code("SEND_MESSAGE_V2" if group is None else "PULL_MESSAGE")
    return [
        AccessAnswer(
            addr,
            await admin.explain_access(addr, access_key, remote_address, request, topic=topic or "", group=group or ""),
        )
        for addr in addrs
    ]
