"""A broker is ready when it copies its master for the first time, or leads."""

from skylark.broker.replication.first_copy import FirstCopy
from skylark.broker.replication.role import RoleMachine

NOT_COPYING = "this broker does not copy a master yet"


def test_a_slave_waits_for_its_master_once() -> None:
    follows = False
    first = FirstCopy(RoleMachine(1), lambda: follows, None)
    assert first.why_not() == NOT_COPYING
    follows = True
    assert first.why_not() == ""
    follows = False
    assert first.why_not() == "", "a master that is away makes no slave unready"


def test_with_controllers_a_member_waits_for_the_sync_state_set() -> None:
    in_sync = False
    first = FirstCopy(RoleMachine(1), lambda: True, lambda: in_sync)
    assert first.why_not() == "this broker is not in the SyncStateSet yet"
    in_sync = True
    assert first.why_not() == ""
    in_sync = False
    assert first.why_not() == ""


def test_a_master_and_a_slave_that_was_elected_have_nothing_to_wait_for() -> None:
    assert FirstCopy(RoleMachine(0), lambda: False, None).why_not() == ""
    role = RoleMachine(1)
    first = FirstCopy(role, lambda: False, lambda: False)
    role.promoted()
    assert first.why_not() == NOT_COPYING
    role.took_over()
    assert first.why_not() == ""
    role.demoted(1)
    assert first.why_not() == ""
