"""The relay knows between which bytes of HTTP/2 it may put a frame of its own."""

from hypothesis import given
from hypothesis import strategies as st

from mqproxy.relay import Frames
from tests.support import http2

# (kind, flags, payload)
FRAMES = st.lists(
    st.tuples(st.sampled_from([http2.DATA, http2.PING, http2.SETTINGS]), st.integers(0, 255), st.binary(max_size=20)),
    min_size=1,
    max_size=5,
)


@given(frames=FRAMES, data=st.data())
def test_a_frame_may_be_added_after_each_frame_and_nowhere_else(
    frames: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    encoded = [http2.frame(kind, flags, 1, payload) for kind, flags, payload in frames]
    ends, end = set(), 0
    for frame in encoded:
        end += len(frame)
        ends.add(end)
    whole, found, at = b"".join(encoded), Frames(), 0
    assert not found.may_add
    while at < len(whole):
        size = data.draw(st.integers(1, len(whole) - at))
        found.feed(whole[at : at + size])
        at += size
        assert found.may_add == (at in ends)


def test_no_frame_may_be_added_within_the_headers_of_a_call() -> None:
    found = Frames()
    found.feed(http2.frame(http2.SETTINGS) + http2.frame(http2.HEADERS, 0, 1, b"x"))
    assert not found.may_add
    found.feed(http2.frame(http2.CONTINUATION, 0, 1, b"x"))
    assert not found.may_add
    found.feed(http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, b"x"))
    assert found.may_add
