"""What a leader of a group does with messages that it cannot propose now."""

from types import SimpleNamespace
from typing import Any

import pytest

from skylark.broker.replication.dledger.proposing import Proposing
from skylark.mqcommon.raft.errors import RaftError


@pytest.mark.parametrize("is_deposed", [True, False])
def test_a_leader_that_is_being_deposed_proposes_later(is_deposed: bool) -> None:
    done: list[str] = []

    def propose(node: object) -> None:
        done.append("propose")
        if is_deposed:
            raise RaftError("hands the leadership over")

    node: Any = SimpleNamespace(turn=lambda: done.append("turn"))
    log: Any = SimpleNamespace(end=0)
    tables: Any = SimpleNamespace(has_pending=True, propose=propose)
    proposing = Proposing(log, lambda: node, lambda: True, lambda: 0, lambda: 0, lambda: 0, tables)
    proposing.wake()
    assert done == (["propose"] if is_deposed else ["propose", "turn"])
