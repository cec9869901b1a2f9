"""The bytes of RocketMQ's auto-switch HA link, read incrementally. Pure.

 slave to master    state 4 = 1 | last file 2 | learner 2 | broker id 8       once, first
 master to slave    state 4 = 1 | size 4 | end 8 | epoch 4 | (epoch 4 | start 8) ...    once: its epochs
 slave to master    state 4 = 2 | offset 8                                    the end of its log; first: where to begin
 master to slave    state 4 = 2 | size 4 | offset 8 | epoch 4 | its start 8 | confirm offset 8 | data

Data never crosses the border of an epoch; size 0 is a heartbeat, with offset -1 until the slave has sent an offset.
Other bytes raise ProtocolError. Neighbours: epochs.py; replication/frames.py (sets without a Controller).
"""

import struct
from typing import NamedTuple

from skylark.broker.replication.autoswitch.epochs import Epoch
from skylark.broker.replication.frames import MAX_CHUNK_BYTES
from skylark.mqcommon.errors import ProtocolError

HANDSHAKE, TRANSFER = 1, 2
# A list of epochs is as long as the number of elections since the oldest file of the log.
MAX_EPOCHS = 10_000

_SLAVE_HELLO = struct.Struct(">ihhq")
_MASTER_HELLO = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_ACK = struct.Struct(">iq")
_HEADER = struct.Struct(">iiqiqq")


class SlaveHello(NamedTuple):
    """``from_last_file``: an empty log begins with the master's last file. A learner never is in the SyncStateSet."""

    from_last_file: bool
    is_learner: bool
    broker_id: int


class MasterHello(NamedTuple):
    """The master's log and its epochs."""

    end: int
    epoch: int
    epochs: tuple[Epoch, ...]


class EpochPiece(NamedTuple):
    """Bytes of the log at ``offset``, written in ``epoch``, which began at ``epoch_start``. Empty: a heartbeat."""

    offset: int
    epoch: int
    epoch_start: int
    confirm_offset: int
    data: memoryview


def encode_slave_hello(hello: SlaveHello) -> bytes:
    return _SLAVE_HELLO.pack(HANDSHAKE, hello.from_last_file, hello.is_learner, hello.broker_id)


def encode_master_hello(hello: MasterHello) -> bytes:
    body = b"".join(_EPOCH.pack(*entry) for entry in hello.epochs)
    return _MASTER_HELLO.pack(HANDSHAKE, len(body), hello.end, hello.epoch) + body


def encode_ack(offset: int) -> bytes:
    return _ACK.pack(TRANSFER, offset)


def encode_header(offset: int, size: int, epoch: Epoch, confirm_offset: int) -> bytes:
    """The header before ``size`` bytes of the log, all of ``epoch``."""
    return _HEADER.pack(TRANSFER, size, offset, epoch.epoch, epoch.start, confirm_offset)


class SlaveReader:
    """Reads what a slave sends: its hello, then offsets."""

    def __init__(self) -> None:
        self._rest = b""
        # None before the hello has arrived.
        self.hello: SlaveHello | None = None

    def receive(self, data: bytes) -> list[int]:
        """The offsets that ``data`` completes."""
        data = self._rest + data
        at = 0
        if self.hello is None and len(data) >= _SLAVE_HELLO.size:
            at = _SLAVE_HELLO.size
            self.hello = _slave_hello(data[:at])
        offsets = []
        while self.hello is not None and len(data) - at >= _ACK.size:
            state, offset = _ACK.unpack_from(data, at)
            if state != TRANSFER or offset < 0:
                raise ProtocolError(f"state {state} with offset {offset} is not the report of a slave")
            offsets.append(offset)
            at += _ACK.size
        self._rest = data[at:]
        return offsets


class MasterReader:
    """Reads what a master sends: its hello, then pieces of the log, which are returned as soon as bytes arrive."""

    def __init__(self) -> None:
        self._rest = b""
        # The frame whose data is being read, with the bytes of it that have not arrived.
        self._frame: EpochPiece | None = None
        self._left = 0
        # None before the whole hello has arrived.
        self.hello: MasterHello | None = None

    def receive(self, data: bytes | memoryview) -> list[EpochPiece]:
        """Pieces and heartbeats, in order; a frame may come in several pieces. These are parts of ``data``."""
        pieces: list[EpochPiece] = []
        view = memoryview(data)
        while view:
            if self.hello is None:
                view = self._read_hello(view)
            elif self._frame is None:
                view = self._read_header(view, pieces)
            else:
                frame, size = self._frame, min(self._left, len(view))
                pieces.append(frame._replace(data=view[:size]))
                view = view[size:]
                self._left -= size
                self._frame = frame._replace(offset=frame.offset + size) if self._left else None
        return pieces

    def _read_hello(self, view: memoryview) -> memoryview:
        view = self._fill(view, _MASTER_HELLO.size)
        if len(self._rest) < _MASTER_HELLO.size:
            return view
        state, size, end, epoch = _MASTER_HELLO.unpack_from(self._rest)
        if state != HANDSHAKE or not 0 <= size <= MAX_EPOCHS * _EPOCH.size or size % _EPOCH.size or end < 0:
            raise ProtocolError(f"{self._rest[:20].hex()} is not the hello of a master that a Controller elected")
        view = self._fill(view, _MASTER_HELLO.size + size)
        if len(self._rest) == _MASTER_HELLO.size + size:
            entries = _EPOCH.iter_unpack(self._rest[_MASTER_HELLO.size :])
            self.hello = MasterHello(end, epoch, tuple(Epoch(*entry) for entry in entries))
            self._rest = b""
        return view

    def _read_header(self, view: memoryview, pieces: list[EpochPiece]) -> memoryview:
        view = self._fill(view, _HEADER.size)
        if len(self._rest) < _HEADER.size:
            return view
        state, size, offset, epoch, epoch_start, confirm_offset = _HEADER.unpack(self._rest)
        self._rest = b""
        fits = offset >= epoch_start >= 0 if size else offset >= -1
        if state != TRANSFER or not 0 <= size <= MAX_CHUNK_BYTES or epoch < 0 or not fits:
            raise ProtocolError(
                f"state {state}: {size} bytes at offset {offset} in epoch {epoch} from {epoch_start} are not a piece"
                " of a commit log"
            )
        frame = EpochPiece(offset, epoch, epoch_start, confirm_offset, memoryview(b""))
        if size:
            self._frame, self._left = frame, size
        else:
            pieces.append(frame)
        return view

    def _fill(self, view: memoryview, size: int) -> memoryview:
        """Move bytes of ``view`` to the rest until that has ``size`` bytes; returns the others."""
        need = max(size - len(self._rest), 0)
        self._rest += view[:need]
        return view[need:]


def _slave_hello(data: bytes) -> SlaveHello:
    state, from_last_file, is_learner, broker_id = _SLAVE_HELLO.unpack(data)
    if state != HANDSHAKE or not {from_last_file, is_learner} <= {0, 1} or broker_id < 0:
        raise ProtocolError(f"{data.hex()} is not the hello of a slave in a set with a Controller")
    return SlaveHello(bool(from_last_file), bool(is_learner), broker_id)
