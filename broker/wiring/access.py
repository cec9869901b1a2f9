"""Who may do what: by the accounts in files (ACL 1.0), or by users and policies (ACL 2.0), or nobody asks."""

from dataclasses import dataclass

from broker.admin.accounts import AccountHandlers
from broker.admin.explain import ExplainHandlers
from broker.admin.policies import PolicyHandlers
from broker.admin.users import UserHandlers
from broker.part import Part
from broker.security.accounts.files import AccountFiles
from broker.security.accounts.guard import AccountGuard
from broker.security.accounts.live import LiveRules
from broker.security.audit import Audit
from broker.security.users.explain import UserExplainer
from broker.security.users.guard import Guard
from broker.security.users.login import Logins
from broker.security.users.migrate import migrate
from broker.security.users.start import make_first_users
from broker.wiring.core import Core


@dataclass(frozen=True)
class Access:
    """The guard, which must be before all other parts, so that nothing is done for who may not ask for it."""

    guard: Guard | AccountGuard
    audit: Audit
    #: The requests of administrators about accounts, users and policies.
    handlers: tuple[Part, ...]


def wire_access(core: Core) -> Access:
    """Make the parts. Reads files: blocks, as nothing else is served yet. ConfigError when they cannot be used."""
    options, metadata = core.options, core.metadata
    make_first_users(options, metadata.users)
    migrate(options, metadata.users, metadata.acls)
    logins, audit = Logins(metadata.users, metadata.acls), Audit(core.clock)
    live = None
    if options.acl_enable:
        files = AccountFiles(options.acl_path, white_skips_all=options.acl_white_list_skips_all)
        live = LiveRules(files, core.clock)
    users = UserExplainer(metadata.users, logins, options) if options.authentication_enabled else None
    explainer = (lambda *asked: live.rules.explain(*asked)) if live is not None else users
    return Access(
        guard=Guard(logins, options, audit) if live is None else AccountGuard(live, audit),
        audit=audit,
        handlers=(
            UserHandlers(metadata.users, metadata.acls, logins, options, core.persister.wait),
            PolicyHandlers(metadata.users, metadata.acls, core.persister.wait),
            AccountHandlers(live, core.identity),
            ExplainHandlers(explainer),
        ),
    )
