"""Random histories of a master, its slaves and the network between them: no copy is wrong, no acknowledgement a lie.

CI runs the same 300 each time, ``--run-nightly`` 10,000 new ones. A failure prints its seed, what happened and the
command that runs it alone.
"""

import os
from random import Random

import pytest

from broker.writing.waits import AckLedger, Done
from tests.sim.broker_set import BrokerSet

pytestmark = pytest.mark.slow

BLOCK = 25
IN_CI = 300
NIGHTLY = 10_000
SEED = "SKYLARK_REPLICATION_SEED"


def run(seed: int) -> None:
    broker_set = BrokerSet(seed)
    try:
        broker_set.run()
    except Exception as error:
        error.add_note(f"history {seed}: {'; '.join(broker_set.trace)}")
        error.add_note(f"again: {SEED}={seed} .venv/bin/pytest {os.path.relpath(__file__)} -k the_chosen_history")
        raise


@pytest.mark.parametrize("first", range(0, IN_CI, BLOCK))
def test_slaves_have_what_was_acknowledged_and_nothing_else(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(NIGHTLY // BLOCK))
def test_slaves_have_what_was_acknowledged_in_new_histories(block: int) -> None:
    for _ in range(BLOCK):
        run(Random().randrange(1 << 32))


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
        for seed in range(IN_CI):
            BrokerSet(seed).run()


@pytest.mark.skipif(SEED not in os.environ, reason=f"runs the history that {SEED} names")
def test_the_chosen_history() -> None:
    run(int(os.environ[SEED]))
