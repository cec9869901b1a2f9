"""Which of the addresses that NameServers tell counts."""

from skylark.broker.replication.known_master import KnownMaster, MasterAddress

A, B = MasterAddress("a:1", "a:2"), MasterAddress("b:1", "b:2")


def known() -> tuple[KnownMaster, list[MasterAddress | None]]:
    master = KnownMaster()
    changes: list[MasterAddress | None] = []
    master.on_change.append(lambda: changes.append(master.address))
    return master, changes


def test_the_first_answer_counts_and_the_same_again_is_no_news() -> None:
    master, changes = known()
    master.reported("ns1", None)
    assert (master.address, master.registered, changes) == (None, False, [])
    master.reported("ns1", A)
    master.reported("ns2", A)
    assert (master.address, master.registered, changes) == (A, True, [A])


def test_a_master_that_is_away_keeps_its_address() -> None:
    master, changes = known()
    master.reported("ns1", A)
    master.reported("ns1", None)
    assert (master.address, master.registered) == (A, False)
    master.reported("ns1", A)
    assert changes == [A]


def test_nameservers_that_differ_do_not_make_the_slave_go_to_and_fro() -> None:
    master, changes = known()
    master.reported("ns1", A)
    for _ in range(3):
        master.reported("ns2", B)
        master.reported("ns1", A)
    assert changes == [A]
    master.reported("ns1", None)  # the last that named it
    master.reported("ns2", B)
    assert changes == [A, B]


def test_a_master_that_moved_is_followed() -> None:
    master, changes = known()
    master.reported("ns1", A)
    master.reported("ns1", B)
    assert changes == [A, B]
    assert master.address == B


def test_only_the_ha_address_may_move() -> None:
    master, changes = known()
    master.reported("ns1", A)
    master.reported("ns1", A._replace(ha_addr="a:3"))
    assert changes == [A, MasterAddress("a:1", "a:3")]


def test_a_master_is_reachable_when_a_nameserver_knows_it_and_it_answers() -> None:
    master, _ = known()
    returns: list[bool] = []
    master.on_return.append(lambda: returns.append(master.is_reachable))
    assert not master.is_reachable
    master.reported("ns1", A)
    assert master.is_reachable
    master.heard(answers=False)  # frozen, and registered still
    assert (master.is_reachable, master.registered) == (False, True)
    master.reported("ns1", A)
    assert returns == [True]
    master.heard(answers=True)
    master.heard(answers=True)
    assert (master.is_reachable, returns) == (True, [True, True])
    master.reported("ns1", None)
    master.heard(answers=True)
    assert (master.is_reachable, returns) == (False, [True, True])
    master.reported("ns1", A)
    assert returns == [True, True, True]
