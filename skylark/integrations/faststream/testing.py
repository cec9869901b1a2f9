"""`TestRocketBroker`: publishes to the handlers of a test, in memory."""

from skylark.sdk.integrations.faststream.testing import TestRocketBroker

__all__ = ["TestRocketBroker"]
