"""Accounts in files, as administrators see them: 50 to 54.

A change is written to its file, and is in force before the answer. No answer contains a secret; RocketMQ's answers do.
Neighbours: security/accounts; access_control.py has the users of ACL 2.0.
"""

import logging
from collections.abc import Callable

import orjson

from skylark.broker.identity import Identity
from skylark.broker.part import Part
from skylark.broker.security.accounts.account_file import Account
from skylark.broker.security.accounts.addresses import split_list
from skylark.broker.security.accounts.edits import AccountChange, AccountDocument
from skylark.broker.security.accounts.guard import LiveRules
from skylark.broker.security.accounts.permissions import permission_text
from skylark.mqcommon.errors import RequestRefused, UserError
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.acl import (
    DELETE_ACL_CONFIG,
    GET_BROKER_CLUSTER_ACL_CONFIG,
    GET_BROKER_CLUSTER_ACL_INFO,
    UPDATE_AND_CREATE_ACL_CONFIG,
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    AclConfig,
    AclVersionResponseHeader,
    PlainAccessConfig,
)

logger = logging.getLogger(__name__)

_OFF = "this broker has no accounts in files: set aclEnable=true and aclFile, and start it again"


class AccountHandlers(Part):
    """Handles the requests about accounts in files. ``live`` is None without aclEnable: then all are refused."""

    def __init__(self, live: LiveRules | None, identity: Identity) -> None:
        self._live_or_none = live
        self._identity = identity

    def handlers(self) -> dict[int, Handler]:
        return {
            GET_BROKER_CLUSTER_ACL_INFO.code: self.versions,
            GET_BROKER_CLUSTER_ACL_CONFIG.code: self.config,
        }

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            UPDATE_AND_CREATE_ACL_CONFIG.code: self.update,
            DELETE_ACL_CONFIG.code: self.delete,
            UPDATE_GLOBAL_WHITE_ADDRS_CONFIG.code: self.update_white,
        }

    async def update(self, channel: Channel, request: Command) -> Command:
        """50: change an account in the file that has it, or add it to plain_acl.yml."""
        header = UPDATE_AND_CREATE_ACL_CONFIG.header(request)
        change = AccountChange(
            header.access_key,
            header.secret_key or None,
            header.white_remote_address,
            header.admin,
            header.default_topic_perm or None,
            header.default_group_perm or None,
            _listed(header.topic_perms),
            _listed(header.group_perms),
        )
        code, live = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED, self._live()
        account = live.rules.accounts.get(header.access_key)
        path = account.source if account is not None else live.path
        await _change(live, path, lambda document: document.put_account(change), code)
        logger.info("account %s changed by %s in %s", header.access_key, channel.remote, path)
        return request.respond()

    async def delete(self, channel: Channel, request: Command) -> Command:
        """51: delete an account from the file that has it."""
        name = DELETE_ACL_CONFIG.header(request).access_key
        code, live = ResponseCode.DELETE_ACL_CONFIG_FAILED, self._live()
        account = live.rules.accounts.get(name)
        if account is None:
            text = f"The accessKey[{name}] corresponding to accessConfig has been deleted failed"
            raise RequestRefused(code, f"{text}: there is no such account")
        await _change(live, account.source, lambda document: document.delete_account(name), code)
        logger.info("account %s deleted by %s from %s", name, channel.remote, account.source)
        return request.respond()

    async def update_white(self, channel: Channel, request: Command) -> Command:
        """53: replace the global white list of a file that is in force."""
        header = UPDATE_GLOBAL_WHITE_ADDRS_CONFIG.header(request)
        code, live = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED, self._live()
        path = header.acl_file_full_path or live.path
        known = [live.path, *(file.path for file in live.rules.files)]
        if path not in known:
            raise RequestRefused(code, f"{path} is no file of accounts of this broker; these are {', '.join(known)}")
        addresses = split_list(header.global_white_addrs)
        await _change(live, path, lambda document: document.put_white(addresses), code)
        logger.info("globalWhiteRemoteAddresses set by %s in %s to %s", channel.remote, path, ", ".join(addresses))
        return request.respond()

    def versions(self, channel: Channel, request: Command) -> Command:
        """52: the versions of this broker's files of accounts."""
        live, who = self._live(), self._identity
        versions = {file.path: file.version.to_wire() for file in live.rules.files}
        # Older tools know a single file, plain_acl.yml, and read its version; newer tools read all versions.
        header = AclVersionResponseHeader(
            orjson.dumps(versions.get(live.path, DataVersion().to_wire())).decode(),
            who.addr,
            who.broker_name,
            who.cluster_name,
            orjson.dumps(versions).decode(),
        )
        return GET_BROKER_CLUSTER_ACL_INFO.answer(request, header)

    def config(self, channel: Channel, request: Command) -> Command:
        """54: all accounts, and the addresses that need none."""
        rules = self._live().rules
        white = [text for file in rules.files for text in file.white.texts]
        config = AclConfig(white, [_shown(account) for account in rules.accounts.values()])
        return answer_with(GET_BROKER_CLUSTER_ACL_CONFIG, request, config)

    def _live(self) -> LiveRules:
        if self._live_or_none is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, _OFF)
        return self._live_or_none


async def _change(live: LiveRules, path: str, edit: Callable[[AccountDocument], None], code: int) -> None:
    try:
        await live.change(path, edit)
    except UserError as error:
        raise RequestRefused(code, f"not changed: {error}") from None


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _shown(account: Account) -> PlainAccessConfig:
    return PlainAccessConfig(
        account.access_key,
        None,
        ",".join(account.white.texts),
        account.admin,
        permission_text(account.default_topic),
        permission_text(account.default_group),
        [f"{name}={permission_text(bits)}" for name, bits in account.topics.items()],
        [f"{name}={permission_text(bits)}" for name, bits in account.groups.items()],
    )
