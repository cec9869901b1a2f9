"""The command ``broker`` with messages that expire at once, at any hour: the smallest ``fileReservedTime`` is an hour."""

from dataclasses import replace

from broker.cli import main
from broker.options import BrokerOptions
from broker.store.retention import RetentionRules


def keep_nothing() -> None:
    """All files of the log but the last may go as soon as they are full."""
    as_configured = BrokerOptions.retention_rules.fget
    assert as_configured is not None

    def rules(options: BrokerOptions) -> RetentionRules:
        return replace(as_configured(options), reserved_ms=0, hours=frozenset(range(24)))

    BrokerOptions.retention_rules = property(rules)  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    keep_nothing()
    main(prog_name="broker")
