"""Which policies decide about a request of a user, for administrators."""

from collections.abc import Sequence

from broker.meta.auth import Users
from broker.options import BrokerOptions
from broker.security.explanation import NO, YES, Explanation, Step
from broker.security.users.checks import DISABLE, SUPER
from broker.security.users.login import Logins
from remoting.protocol.rights import CLUSTER, Need


class UserExplainer:
    """Call it with the user's name, the client's address, what the request needs, and its code."""

    def __init__(self, users: Users, logins: Logins, options: BrokerOptions) -> None:
        self._users = users
        self._logins = logins
        self._options = options

    def __call__(self, name: str, host: str, needs: Sequence[Need], code: int) -> Explanation:
        steps: list[Step] = []
        authorizes = self._options.authorization_enabled and code not in self._options.open_codes
        if not authorizes and code in self._options.unsigned_codes:
            return Explanation(True, "authenticationWhitelist", [Step("authenticationWhitelist", YES, str(code))])
        user = self._users.get(name)
        if user is None:
            return Explanation(False, f"User:{name} is not found.", [Step("user", NO, name)])
        steps.append(Step("user", YES, f"{name}, {user.user_type}, {user.user_status}"))
        if user.user_status == DISABLE:
            return Explanation(False, f"User:{name} is disabled.", [*steps, Step("status", NO, DISABLE)])
        if not authorizes:
            rule = "authorizationWhitelist" if self._options.authorization_enabled else "authorizationEnabled=false"
            return Explanation(True, "any user may send it", [*steps, Step("any user", YES, rule)])
        if user.user_type == SUPER:
            return Explanation(True, "a super user may do everything", [*steps, Step("super user", YES, SUPER)])
        for kind, named, actions in needs:
            resource = self._options.broker_cluster_name if kind == CLUSTER else named
            decision = self._logins.decide(user, kind, resource, actions, host)
            outcome = YES if decision.is_allowed else NO
            rule = f"{decision.policy_type} {decision.entry}" if decision.entry else "no policy matches"
            steps.append(Step(f"{' or '.join(actions)} on {kind}:{resource}", outcome, rule))
            if not decision.is_allowed:
                text = f"User:{name} has no permission to access {kind}:{resource} from {host}"
                return Explanation(False, text, steps)
        return Explanation(True, "all that the request needs is allowed", steps)
