from hypothesis import given
from hypothesis import strategies as st

from mqcommon.message.message import Message
from spark_connector.writing.row_keys import RowKeys, name_in

ROWS = st.lists(
    st.sampled_from([b"a", b"b", b""]) | st.builds(lambda flag: Message("t", b"a", flag=flag), st.integers(0, 1))
)


def keys() -> RowKeys:
    return RowKeys("query", "7", 3, "t")


@given(ROWS, st.randoms())
def test_keys_do_not_depend_on_the_order_or_on_batches(rows: list[bytes | Message], random: object) -> None:
    first = keys().names(rows)
    assert len(set(first)) == len(rows)
    again = list(rows)
    random.shuffle(again)  # type: ignore[attr-defined]
    in_parts = keys()
    assert sorted(n for row in again for n in in_parts.names([row])) == sorted(first)


@given(
    st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3), st.integers(0, 3), st.text(max_size=3)), unique=True)
)
def test_scopes_are_of_one_query_epoch_partition_and_topic(tasks: list[tuple[str, str, int, str]]) -> None:
    assert len({RowKeys(*task).scope for task in tasks}) == len(tasks)


def test_keys_are_hex_and_tell_their_name() -> None:
    made = keys()
    (name,) = made.names([b"x"])
    assert len(bytes.fromhex(made.scope + name)) == len(bytes.fromhex(made.claim(2))) == 16
    assert made.claim(2).startswith(made.scope)
    assert name_in(made.scope + name) == name
