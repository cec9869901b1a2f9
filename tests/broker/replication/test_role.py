"""The role machine: which changes there are, and what observers see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.role import Role, RoleKind, RoleMachine

EVENTS = st.sampled_from(["promoted", "took_over", "stepped_back", "demoted", "acts", "yields"])
# Where each event leads, by the present kind; what is not there is refused, or changes nothing.
LEADS = {
    ("demoted", RoleKind.MASTER): RoleKind.SLAVE,
    ("promoted", RoleKind.SLAVE): RoleKind.TAKING_OVER,
    ("promoted", RoleKind.ACTING): RoleKind.TAKING_OVER,
    ("took_over", RoleKind.TAKING_OVER): RoleKind.MASTER,
    ("stepped_back", RoleKind.TAKING_OVER): RoleKind.SLAVE,
    ("acts", RoleKind.SLAVE): RoleKind.ACTING,
    ("yields", RoleKind.ACTING): RoleKind.SLAVE,
}


def happen(machine: RoleMachine, event: str) -> None:
    if event in ("acts", "yields"):
        machine.acting(event == "acts")
    elif event == "demoted":
        machine.demoted(3)
    else:
        getattr(machine, event)()


@given(st.sampled_from([0, 1, 2]), st.lists(EVENTS, max_size=30))
def test_changes(broker_id: int, events: list[str]) -> None:
    machine = RoleMachine(broker_id)
    seen: list[tuple[Role, Role]] = []
    machine.observe(lambda before, now: seen.append((before, now)))
    for event in events:
        before, told = machine.now, len(seen)
        leads_to = LEADS.get((event, before.kind))
        if leads_to is None and event in ("promoted", "took_over", "stepped_back", "demoted"):
            with pytest.raises(RuntimeError, match=f"is {before.kind.value} cannot become"):
                happen(machine, event)
        else:
            happen(machine, event)
        assert machine.now.kind is (leads_to or before.kind)
        assert seen[told:] == ([(before, machine.now)] if leads_to else [])
        now = machine.now
        assert (now.broker_id == 0) is now.is_master, "id 0 is the master's, and nobody else's"
        assert not (now.is_master and now.follows)
        assert now.takes_commits is (now.kind in (RoleKind.MASTER, RoleKind.ACTING))


def test_a_demoted_master_needs_an_id_of_its_own() -> None:
    machine = RoleMachine(0)
    with pytest.raises(ValueError, match="0 is not a slave's id"):
        machine.demoted(0)
    assert machine.now.is_master


def test_no_change_begins_while_another_is_told() -> None:
    machine = RoleMachine(1)

    def observer(before: Role, now: Role) -> None:
        if now.kind is RoleKind.TAKING_OVER:
            machine.took_over()

    machine.observe(observer)
    with pytest.raises(RuntimeError):
        machine.promoted()
    machine.took_over()
    assert machine.now == Role(RoleKind.MASTER, 0)
