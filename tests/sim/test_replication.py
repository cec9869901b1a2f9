"""Random histories of a master, its slaves and the network between them: no copy is wrong, no acknowledgement a lie."""

from collections.abc import Iterable

import pytest

from skylark.broker.writing.waits import AckLedger, Done
from tests.sim.broker_set import BrokerSet
from tests.support.histories import BLOCK, KNOWN, run

# A history in which a slave has another log than its master.
OTHER_BYTES = 23


@pytest.mark.histories()
def test_slaves_have_what_was_acknowledged_and_nothing_else(seeds: Iterable[int]) -> None:
    run(BrokerSet, seeds)


def test_a_wrong_acknowledgement_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(_: AckLedger, end: int, needed: int, deadline: float, done: Done) -> None:
        done(True)

    monkeypatch.setattr(AckLedger, "wait", wait)
    with pytest.raises(AssertionError, match="SEND_OK"):
        for seed in range(BLOCK):
            BrokerSet(seed).run()


def test_a_slave_with_other_bytes_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.master.first_difference", lambda *_: None)
    with pytest.raises(AssertionError, match="follows a log that is not its own"):
        for seed in range(OTHER_BYTES, OTHER_BYTES + KNOWN):
            BrokerSet(seed).run()
