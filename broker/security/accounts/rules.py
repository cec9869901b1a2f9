"""Who may do what, by the accounts of all files. Pure. The order of checks is RocketMQ's:

1. A client at an address in globalWhiteRemoteAddresses may do everything.
2. The request names an account. A client at its whiteRemoteAddress may do everything, too.
3. Anybody else must have signed the request with the account's secret.
4. An administrator may do everything, and only an administrator may change topics, groups and the broker.
5. The permission for the topic or group decides, or the default permission if there is none. DENY always refuses.

With an option, 1 and 2 only excuse a client from signing: it must still name an account that has the rights.
Refusals have RocketMQ's texts. `refusal` is asked for each request; `explain` says what it would answer, and why.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from skylark.broker.security.access import NO, YES, Explanation, ExplanationStep, plain_fault
from skylark.broker.security.accounts.account_file import Account, AccountFile
from skylark.broker.security.accounts.addresses import Addresses
from skylark.broker.security.accounts.permissions import ADMIN, PUB, needed_bits, needed_text, permission_text, permits
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.names import TRACE_TOPIC
from skylark.remoting.protocol.command import Command, ext_text
from skylark.remoting.protocol.plain_codes import PlainCodes, plain_codes
from skylark.remoting.protocol.rights import CLUSTER, TOPIC, Need
from skylark.remoting.protocol.signature import ACCESS_KEY_FIELD, WholeSignatures, is_plain, is_signed_with

_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
_MAX_NAME: Final = 255
_NO_EXT: Final[Mapping[str, Any]] = {}


class Refusal(NamedTuple):
    """Why a request is refused."""

    text: str
    #: The rule that decided; "" if no rule did.
    rule: str = ""

    @property
    def remark(self) -> str:
        """The text that the client gets."""
        return f"{_EXCEPTION}: {self.text}"


class AccountRules:
    """The accounts of ``files``. ConfigError when two files have the same account."""

    def __init__(self, files: Sequence[AccountFile], *, white_skips_all: bool = True) -> None:
        self.files = tuple(files)
        self._white_skips_all = white_skips_all
        self._white = Addresses(text for file in files for text in file.white.texts)
        accounts: dict[str, Account] = {}
        for file in files:
            for name, account in file.accounts.items():
                if name in accounts:
                    raise ConfigError(
                        f"account {name} is in {accounts[name].source} and in {file.path}; remove one of the two"
                    )
                accounts[name] = account
        self.accounts: Mapping[str, Account] = accounts

    def refusal(
        self,
        request: Command,
        host: str,
        needs: Callable[[Command], Sequence[Need]],
        whole: WholeSignatures | None = None,
        plain: PlainCodes | None = None,
    ) -> Refusal | None:
        """Why the client at ``host`` may not send ``request``; None when it may. ``needs`` is asked only if it matters.

        ``whole``: as `is_signed_with` takes it. ``plain``: who may use RocketMQ's signature for requests of
        administrators. Raises RequestRefused as ``needs`` does.
        """
        is_white = self._white.naming(host)
        if is_white and self._white_skips_all:
            return None
        access_key = (request.ext or _NO_EXT).get(ACCESS_KEY_FIELD) or ""
        if access_key.__class__ is not str:
            access_key = ext_text(access_key)
        account = self.accounts.get(access_key)
        if account is None:
            return _no_account(access_key)
        found: Sequence[Need] | None = None
        if account.white.naming(host):
            if self._white_skips_all:
                return None
        elif not is_white:
            if not is_signed_with(request, account.secret_key, whole):
                return Refusal(f"Check signature failed for accessKey={account.access_key}")
            if is_plain(request):
                found = needs(request)
                fault = plain_fault(request.code, account.access_key, host, found, plain or plain_codes(""))
                if fault is not None:
                    return Refusal(fault)
        if account.admin:
            return None
        for need in needs(request) if found is None else found:
            needed = needed_bits(need)
            if not _allows(account, need, needed):
                return _refusal(account, need, needed, request.code)
        return None

    def may(self, access_key: str, host: str, needs: Sequence[Need]) -> bool:
        """Whether the account, if it has signed or need not sign, may do all of ``needs`` from ``host``."""
        is_white = self._white.naming(host)
        if is_white and self._white_skips_all:
            return True
        account = self.accounts.get(access_key)
        if account is None:
            return False
        if account.admin or (self._white_skips_all and account.white.naming(host)):
            return True
        return all(_allows(account, need, needed_bits(need)) for need in needs)

    def explain(self, access_key: str, host: str, needs: Sequence[Need], code: int) -> Explanation:
        """What `refusal` decides about a correctly signed request ``code``, and by which rules."""
        steps: list[ExplanationStep] = []
        white = self._white.naming(host)
        steps.append(
            ExplanationStep("globalWhiteRemoteAddresses", YES if white else NO, white or ", ".join(self._white.texts))
        )
        if white and self._white_skips_all:
            return Explanation(True, f"{host} is in globalWhiteRemoteAddresses", steps)
        account = self.accounts.get(access_key)
        if account is None:
            steps.append(ExplanationStep("account", NO, access_key))
            return Explanation(False, _no_account(access_key).remark, steps)
        steps.append(ExplanationStep("account", YES, f"{account.access_key}, in {account.source}"))
        white = account.white.naming(host)
        steps.append(
            ExplanationStep("whiteRemoteAddress", YES if white else NO, white or ", ".join(account.white.texts))
        )
        if white and self._white_skips_all:
            return Explanation(True, f"{host} is in whiteRemoteAddress of {account.access_key}", steps)
        steps.append(ExplanationStep("admin", YES if account.admin else NO, f"admin: {str(account.admin).lower()}"))
        if account.admin:
            return Explanation(True, f"{account.access_key} is an administrator", steps)
        for need in needs:
            needed = needed_bits(need)
            allows, step = _allows(account, need, needed), f"{needed_text(needed)} on {_name(need)}"
            steps.append(ExplanationStep(step, YES if allows else NO, _rule(account, need, needed)))
            if not allows:
                return Explanation(False, _refusal(account, need, needed, code).remark, steps)
        return Explanation(True, "all that the request needs is permitted", steps)


def _allows(account: Account, need: Need, needed: int) -> bool:
    if needed == ADMIN:
        return False
    if need.kind == TOPIC:
        if needed == PUB and need.name == TRACE_TOPIC:
            return True
        return permits(account.topics.get(need.name, account.default_topic), needed)
    return permits(account.groups.get(need.name, account.default_group), needed)


def _rule(account: Account, need: Need, needed: int) -> str:
    """The entry of the file by which `_allows` has decided, as the file writes it."""
    if needed == ADMIN:
        return "admin: false"
    is_topic = need.kind == TOPIC
    if is_topic and needed == PUB and need.name == TRACE_TOPIC:
        return "everybody may trace"
    named = (account.topics if is_topic else account.groups).get(need.name)
    if named is not None:
        return f"{'topicPerms' if is_topic else 'groupPerms'}: {need.name[:_MAX_NAME]}={permission_text(named)}"
    default = account.default_topic if is_topic else account.default_group
    return f"{'defaultTopicPerm' if is_topic else 'defaultGroupPerm'}: {permission_text(default)}"


def _no_account(access_key: str) -> Refusal:
    # C++ clients without credentials send an empty key.
    return Refusal(f"No acl config for {access_key[:_MAX_NAME]}" if access_key else "No accessKey is configured")


def _refusal(account: Account, need: Need, needed: int, code: int) -> Refusal:
    rule = f"{_rule(account, need, needed)}, in {account.source}"
    if needed == ADMIN:
        return Refusal(
            f"Need admin permission for request code={code}, but accessKey={account.access_key} is not", rule
        )
    return Refusal(f"No default permission for {_name(need)}", rule)


def _name(need: Need) -> str:
    return "the broker" if need.kind == CLUSTER else f"{need.kind.lower()}:{need.name[:_MAX_NAME]}"
