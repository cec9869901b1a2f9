"""A broker is ready when it has taken its place in its set for the first time since its start."""

from skylark.broker.replication.joining import Joining
from skylark.broker.replication.role import RoleMachine

NOT_COPYING = "this broker does not copy a master yet"


def test_a_slave_waits_for_its_master_once() -> None:
    follows = False
    joining = Joining(RoleMachine(1), lambda: follows, lambda: False, None)
    assert joining.why_not() == NOT_COPYING
    follows = True
    assert joining.why_not() == ""
    follows = False
    assert joining.why_not() == "", "a master that is away makes no slave unready"


def test_with_controllers_a_member_waits_for_the_sync_state_set() -> None:
    in_sync = False
    joining = Joining(RoleMachine(1), lambda: True, lambda: True, lambda: in_sync)
    assert joining.why_not() == "this broker is not in the SyncStateSet yet"
    in_sync = True
    assert joining.why_not() == ""
    in_sync = False
    assert joining.why_not() == ""


def test_a_master_waits_for_the_slaves_that_its_sends_need() -> None:
    has_slaves = False
    joining = Joining(RoleMachine(0), lambda: False, lambda: has_slaves, None)
    assert joining.why_not() == "this master has fewer slaves than its sends need"
    has_slaves = True
    assert joining.why_not() == ""
    has_slaves = False
    assert joining.why_not() == ""


def test_a_slave_that_was_elected_has_nothing_to_copy() -> None:
    role = RoleMachine(1)
    joining = Joining(role, lambda: False, lambda: True, lambda: False)
    role.promoted()
    assert joining.why_not() == NOT_COPYING
    role.took_over()
    assert joining.why_not() == ""
    role.demoted(1)
    assert joining.why_not() == ""
