"""Why a client may send a request, or may not: 7102, for `mqadmin explainAcl`. It asks the rules that are in force."""

from collections.abc import Callable, Sequence

from broker.part import Part
from broker.security.access import Explanation, needs_about
from mqcommon.errors import RequestRefused
from remoting.net.answers import answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.acl import EXPLAIN_ACCESS, AccessExplanation, AccessStep
from remoting.protocol.rights import Need

#: Of the account, the address, what the request needs, and its code.
Explainer = Callable[[str, str, Sequence[Need], int], Explanation]


class ExplainHandlers(Part):
    """``explain`` is None without access control."""

    def __init__(self, explain: Explainer | None) -> None:
        self._explain = explain

    def handlers(self) -> dict[int, Handler]:
        return {EXPLAIN_ACCESS.code: self.explain}

    def explain(self, channel: Channel, request: Command) -> Command:
        """7102."""
        header = EXPLAIN_ACCESS.header(request)
        needs = needs_about(header.request_code, header.topic, header.group)
        if not needs and not (header.topic or header.group):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the request is about a topic or a group: give its name")
        if self._explain is None:
            found = Explanation(True, "this broker has no access control: everybody may do everything", [])
        else:
            found = self._explain(header.access_key, header.remote_address, needs, header.request_code)
        steps = [AccessStep(*step) for step in found.steps]
        return answer_with(EXPLAIN_ACCESS, request, AccessExplanation(found.is_allowed, found.text, steps))
