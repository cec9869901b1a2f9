"""The command ``broker`` with messages that expire after seconds: the smallest ``fileReservedTime`` is an hour.

Files go only when somebody asks for it (deleteExpiredCommitLog).
"""

from dataclasses import replace

from skylark.broker.cli import main
from skylark.broker.options import BrokerOptions
from skylark.broker.store.retention import RetentionRules

# A slave that follows has the messages by then.
KEPT_MS = 2_000


def keep_little() -> None:
    """Let messages older than `KEPT_MS` be removed."""
    as_configured = BrokerOptions.retention_rules.fget
    assert as_configured is not None

    def rules(options: BrokerOptions) -> RetentionRules:
        return replace(as_configured(options), reserved_ms=KEPT_MS, hours=frozenset())

    BrokerOptions.retention_rules = property(rules)  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    keep_little()
    main(prog_name="broker")
