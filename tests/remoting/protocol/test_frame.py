import pytest

from skylark.mqcommon.errors import FrameTooLarge, ProtocolError
from skylark.remoting.protocol.command import CBOR, JSON, ROCKETMQ, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import DECODERS, MAX_FRAME_BYTES, PREFIX, encode

ALL_CODECS = pytest.mark.parametrize("codec", [JSON, ROCKETMQ, CBOR])


def through(command: Command) -> Command:
    (decoded,) = Connection().receive_data(encode(command))
    return decoded


@ALL_CODECS
def test_a_command_survives_the_wire(codec: int) -> None:
    command = Command(310, {"a": "group", "i": "KEYS\x01k\x02"}, b"body", 2, 77, "remark é", codec, "GO", 401)
    assert through(command) == command


@ALL_CODECS
def test_an_absent_ext_stays_absent(codec: int) -> None:
    assert through(Command(34, codec=codec)).ext is None


@ALL_CODECS
def test_fields_that_are_none_are_left_out(codec: int) -> None:
    assert through(Command(34, {"a": None, "b": "x"}, codec=codec)).ext == {"b": "x"}


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ])
def test_values_become_javas_text(codec: int) -> None:
    ext = {"i": 7, "l": -(2**40), "t": True, "f": False}
    assert through(Command(1, ext, codec=codec)).ext == {
        "i": "7",
        "l": "-1099511627776",
        "t": "true",
        "f": "false",
    }


def test_cbor_keeps_the_types_of_values() -> None:
    ext = {"i": 7, "l": -(2**40), "t": True, "f": False, "s": "7"}
    assert through(Command(1, ext, codec=CBOR)).ext == ext


def test_json_bytes_are_javas() -> None:
    frame = encode(Command(0, {"offset": 4}, flag=1, opaque=24, language="JAVA", version=409))
    header = (
        b'{"code":0,"extFields":{"offset":"4"},"flag":1,"language":"JAVA","opaque":24,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    )
    assert frame == PREFIX.pack(4 + len(header), len(header)) + header


@pytest.mark.parametrize("opaque", [-1, -(2**31), 2**31 - 1])
@ALL_CODECS
def test_opaque_may_wrap(codec: int, opaque: int) -> None:
    assert through(Command(11, opaque=opaque, codec=codec)).opaque == opaque


def test_an_answer_takes_opaque_and_header_type_of_its_request() -> None:
    answer = Command(11, opaque=5, codec=ROCKETMQ).respond(19, "nothing", {"x": 1}, b"b")
    assert answer == Command(19, {"x": 1}, b"b", 1, 5, "nothing", ROCKETMQ)
    assert answer.is_response and not answer.is_oneway


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":105,"flag":0,"language":"CPP","opaque":0,"remark":"","version":63}\n',
        b'{"code":105,"opaque":0,"language":1}',
        b'{"opaque":0,"code":105,"extFields":null,"language":"CPP","more":[1]}',
    ],
)
def test_lenient_json_headers(header: bytes) -> None:
    command = DECODERS[JSON](header)
    assert (command.code, command.language, command.opaque) == (105, "CPP", 0)


def test_json_values_stay_as_they_came() -> None:
    header = b'{"code":1,"extFields":{"a":1,"b":true,"c":"x","d":null}}'
    assert DECODERS[JSON](header).ext == {"a": 1, "b": True, "c": "x", "d": None}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"1",
        b"{}",
        b'{"code":"1"}',
        b'{"code":1.0}',
        b'{"code":true}',
        b'{"code":1,"opaque":null}',
        b'{"code":1,"opaque":1e99}',
        b'{"code":1,"flag":"x"}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"remark":7}',
        b'{"code":NaN}',
        b'{"code":1,"remark":"\\ud800"}',
        b'{"code":1,"remark":"\xff"}',
        b"[" * 100_000,
    ],
)
def test_bad_json_headers(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        DECODERS[JSON](header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        bytes(16),
        b"\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00",
        b"\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\xff\x00\x00\x00\x00",
        bytes(17) + b"\x00\x00\x00\x04\xff\xff\x00\x00",
        bytes(17) + b"\x00\x00\x00\x09\x00\x01a\x00\x00\x00\x63bb",
        bytes(17) + b"\x00\x00\x00\x01a",
        bytes(17) + b"\x80\x00\x00\x00",
    ],
)
def test_bad_binary_headers(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        DECODERS[ROCKETMQ](header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x80",
        b"\x87\x01",
        b"\x87\x01\x02\x03\x04\x05\xf6\x80",
        b"\x87\x01\x02\x03\x04\x05\x06\xf6",
        b"\x87\xc2\x49\x01\xff\xff\xff\xff\xff\xff\xff\xff\x02\x03\x04\x05\xf6\xf6",
        b"\x87\xf5\x02\x03\x04\x05\xf6\xf6",
        b"\x87\x01\x02\x03\x04\x05\xf6\xa1\x01\x02",
        b"\x87\x01\x02\x03\x04\x05\xf6\xa1\x61a\x81\x01",
        b"\x87\x01\x02\x03\x04\x05\xf6\xa1\x61a\xd8\x23\x61a",
        b"\x87\x01\x02\x03\x04\x05\x61\xff\xf6",
        b"\x81" * 100_000,
        b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
    ],
)
def test_bad_cbor_headers(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        DECODERS[CBOR](header)


def test_the_longest_frame() -> None:
    room = MAX_FRAME_BYTES - len(encode(Command(1)))
    frame = encode(Command(1, body=bytes(room)))
    assert len(frame) == MAX_FRAME_BYTES
    assert len(Connection().receive_data(frame)) == 1
    with pytest.raises(FrameTooLarge, match="longer than"):
        encode(Command(1, body=bytes(room + 1)))
