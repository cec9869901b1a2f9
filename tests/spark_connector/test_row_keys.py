from hypothesis import given
from hypothesis import strategies as st

from mqcommon.message.message import Message
from spark_connector.row_keys import RowKeys, number_in

ROWS = st.lists(
    st.sampled_from([b"a", b"b", b""]) | st.builds(lambda flag: Message("t", b"a", flag=flag), st.integers(0, 1))
)


def keys() -> RowKeys:
    return RowKeys("query", "7", 3, "t")


@given(ROWS, st.randoms())
def test_keys_do_not_depend_on_the_order_or_on_batches(rows: list[bytes | Message], random: object) -> None:
    first = keys().numbers(rows)
    assert len(set(first)) == len(rows)
    again = list(rows)
    random.shuffle(again)  # type: ignore[attr-defined]
    in_parts = keys()
    assert sorted(n for row in again for n in in_parts.numbers([row])) == sorted(first)


@given(
    st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3), st.integers(0, 3), st.text(max_size=3)), unique=True)
)
def test_scopes_are_of_one_query_epoch_partition_and_topic(tasks: list[tuple[str, str, int, str]]) -> None:
    assert len({RowKeys(*task).scope for task in tasks}) == len(tasks)


def test_keys_are_hex_and_tell_their_number() -> None:
    made = keys()
    (number,) = made.numbers([b"x"])
    assert made.key(number).startswith(made.scope)
    assert len(bytes.fromhex(made.key(number))) == 16
    assert number_in(made.key(number)) == number
    assert number_in(made.key(2)) == 2
