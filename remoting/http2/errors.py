"""The error of this package, and the codes that it carries to the peer."""

from enum import IntEnum

from skylark.mqcommon.errors import ProtocolError


class ErrorCode(IntEnum):
    """The codes of RST_STREAM and GOAWAY (RFC 9113, 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Http2Error(ProtocolError):
    """The peer broke a rule of HTTP/2 or met a limit; the whole connection ends. The text says what the peer did."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.text} ({self.code.name})"
