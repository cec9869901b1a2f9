from skylark.broker.writing.elected import Elected


def test_at_first_nothing_is_confirmed_and_no_lease_is_held() -> None:
    elected = Elected(lambda: 0.0)
    assert elected.confirm_offset == 0
    assert not elected.is_leased


def test_the_lease_is_asked_of_the_clock_each_time() -> None:
    now = 10.0
    elected = Elected(lambda: now)
    elected.lease_until = 11.0
    assert elected.is_leased
    now = 11.0
    assert not elected.is_leased


def test_observers_hear_of_each_move_on_and_of_nothing_else() -> None:
    elected, heard = Elected(lambda: 0.0), list[int]()
    elected.observers.append(heard.append)
    for offset in (100, 100, 50, 200):
        elected.confirmed(offset)
    assert heard == [100, 200]
    assert elected.confirm_offset == 200


def test_only_a_cut_moves_back() -> None:
    elected, heard = Elected(lambda: 0.0), list[int]()
    cuts = list[int]()
    elected.confirmed(100)
    elected.observers.append(heard.append)
    elected.on_cut.append(cuts.append)
    elected.cut(300)
    assert elected.confirm_offset == 100
    elected.cut(60)
    assert elected.confirm_offset == 60
    assert (heard, cuts) == ([], [300, 60])
    elected.confirmed(70)
    assert heard == [70]
