"""Request 46: a client asks, before it subscribes, whether the broker can use its expression."""

from broker.delivery.filters import Filters, check_property_filter
from broker.options import BrokerOptions
from broker.part import Part
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.command import Command
from remoting.protocol.requests.clients import CHECK_CLIENT_CONFIG


class SubscriptionChecks(Part):
    """See the module."""

    def __init__(self, filters: Filters, options: BrokerOptions) -> None:
        self._filters = filters
        self._options = options

    def handlers(self) -> dict[int, Handler]:
        return {CHECK_CLIENT_CONFIG.code: self.check}

    def check(self, channel: Channel, request: Command) -> Command:
        """Refuses what a pull would be refused for."""
        subscription = CHECK_CLIENT_CONFIG.body(request).subscription_data
        if not subscription.is_tag:
            check_property_filter(self._options, subscription.expression_type)
            self._filters.of_type(subscription.sub_string, subscription.expression_type)
        return request.respond()
