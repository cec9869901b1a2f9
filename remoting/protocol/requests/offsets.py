"""Offsets of groups (14, 15, 43; set from outside: 222, 314; 308), of queues (29 - 32) and of delay levels (45)."""

from remoting.protocol.bodies.offsets import ConsumerOffsetTable, CorrectionOffsets, DelayOffsetTable
from remoting.protocol.bodies.reset_offset import ResetOffsetBody
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.client import ResetOffsetRequestHeader
from remoting.protocol.headers.offsets import (
    CloneGroupOffsetRequestHeader,
    GetAllConsumerOffsetRequestHeader,
    GetAllConsumerOffsetResponseHeader,
    GetAllDelayOffsetResponseHeader,
    GetMaxOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

# QUERY_NOT_FOUND: the group has no offset; the answer then has no fields.
QUERY_CONSUMER_OFFSET = Request(
    RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader, NOTHING, OffsetResponseHeader, NOTHING,
    accepts=(ResponseCode.QUERY_NOT_FOUND,),
)  # fmt: skip
UPDATE_CONSUMER_OFFSET = Request(
    RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader, NOTHING, NOTHING, NOTHING,
    may_be_oneway=True,
)  # fmt: skip
SEARCH_OFFSET_BY_TIMESTAMP = Request(
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetRequestHeader, NOTHING, OffsetResponseHeader, NOTHING
)
GET_MAX_OFFSET = Request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader, NOTHING, OffsetResponseHeader, NOTHING)
GET_MIN_OFFSET = Request(RequestCode.GET_MIN_OFFSET, QueueRequestHeader, NOTHING, OffsetResponseHeader, NOTHING)
GET_EARLIEST_MSG_STORETIME = Request(
    RequestCode.GET_EARLIEST_MSG_STORETIME, QueueRequestHeader, NOTHING, TimestampResponseHeader, NOTHING
)
# Between Skylark and Skylark in pages, as are 21 and 201: see headers/pages.py.
GET_ALL_CONSUMER_OFFSET = Request(
    RequestCode.GET_ALL_CONSUMER_OFFSET, GetAllConsumerOffsetRequestHeader, NOTHING,
    GetAllConsumerOffsetResponseHeader, ConsumerOffsetTable,
)  # fmt: skip
GET_ALL_DELAY_OFFSET = Request(
    RequestCode.GET_ALL_DELAY_OFFSET, NOTHING, NOTHING, GetAllDelayOffsetResponseHeader, DelayOffsetTable
)
INVOKE_BROKER_TO_RESET_OFFSET = Request(
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetRequestHeader, NOTHING, NOTHING, ResetOffsetBody
)
CLONE_GROUP_OFFSET = Request(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffsetRequestHeader, NOTHING, NOTHING, NOTHING)
QUERY_CORRECTION_OFFSET = Request(
    RequestCode.QUERY_CORRECTION_OFFSET, QueryCorrectionOffsetHeader, NOTHING, NOTHING, CorrectionOffsets
)
