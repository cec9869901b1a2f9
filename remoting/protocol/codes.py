"""Request and response codes: plain ints under RocketMQ's names.

Only the codes that a Skylark daemon handles or sends are named; any other number travels as it is.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class RequestCode:
    """What a request asks for."""

    SEND_MESSAGE: Final = 10
    PULL_MESSAGE: Final = 11
    QUERY_MESSAGE: Final = 12
    QUERY_CONSUMER_OFFSET: Final = 14
    UPDATE_CONSUMER_OFFSET: Final = 15
    UPDATE_AND_CREATE_TOPIC: Final = 17
    GET_ALL_TOPIC_CONFIG: Final = 21
    UPDATE_BROKER_CONFIG: Final = 25
    GET_BROKER_CONFIG: Final = 26
    GET_BROKER_RUNTIME_INFO: Final = 28
    SEARCH_OFFSET_BY_TIMESTAMP: Final = 29
    GET_MAX_OFFSET: Final = 30
    GET_MIN_OFFSET: Final = 31
    GET_EARLIEST_MSG_STORETIME: Final = 32
    VIEW_MESSAGE_BY_ID: Final = 33
    HEART_BEAT: Final = 34
    UNREGISTER_CLIENT: Final = 35
    CONSUMER_SEND_MSG_BACK: Final = 36
    END_TRANSACTION: Final = 37
    GET_CONSUMER_LIST_BY_GROUP: Final = 38
    CHECK_TRANSACTION_STATE: Final = 39
    NOTIFY_CONSUMER_IDS_CHANGED: Final = 40
    LOCK_BATCH_MQ: Final = 41
    UNLOCK_BATCH_MQ: Final = 42
    GET_ALL_CONSUMER_OFFSET: Final = 43
    GET_ALL_DELAY_OFFSET: Final = 45
    CHECK_CLIENT_CONFIG: Final = 46
    PUT_KV_CONFIG: Final = 100
    GET_KV_CONFIG: Final = 101
    DELETE_KV_CONFIG: Final = 102
    REGISTER_BROKER: Final = 103
    UNREGISTER_BROKER: Final = 104
    GET_ROUTEINFO_BY_TOPIC: Final = 105
    GET_BROKER_CLUSTER_INFO: Final = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Final = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Final = 201
    GET_TOPIC_STATS_INFO: Final = 202
    GET_CONSUMER_CONNECTION_LIST: Final = 203
    GET_PRODUCER_CONNECTION_LIST: Final = 204
    WIPE_WRITE_PERM_OF_BROKER: Final = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Final = 206
    DELETE_SUBSCRIPTIONGROUP: Final = 207
    GET_CONSUME_STATS: Final = 208
    DELETE_TOPIC_IN_BROKER: Final = 215
    DELETE_TOPIC_IN_NAMESRV: Final = 216
    REGISTER_TOPIC_IN_NAMESRV: Final = 217
    GET_KVLIST_BY_NAMESPACE: Final = 219
    RESET_CONSUMER_CLIENT_OFFSET: Final = 220
    GET_CONSUMER_STATUS_FROM_CLIENT: Final = 221
    INVOKE_BROKER_TO_RESET_OFFSET: Final = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Final = 223
    GET_TOPICS_BY_CLUSTER: Final = 224
    QUERY_TOPIC_CONSUME_BY_WHO: Final = 300
    QUERY_CONSUME_TIME_SPAN: Final = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS: Final = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Final = 305
    CLEAN_EXPIRED_CONSUMEQUEUE: Final = 306
    GET_CONSUMER_RUNNING_INFO: Final = 307
    QUERY_CORRECTION_OFFSET: Final = 308
    CONSUME_MESSAGE_DIRECTLY: Final = 309
    SEND_MESSAGE_V2: Final = 310
    GET_UNIT_TOPIC_LIST: Final = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST: Final = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Final = 313
    CLONE_GROUP_OFFSET: Final = 314
    VIEW_BROKER_STATS_DATA: Final = 315
    CLEAN_UNUSED_TOPIC: Final = 316
    GET_BROKER_CONSUME_STATS: Final = 317
    UPDATE_NAMESRV_CONFIG: Final = 318
    GET_NAMESRV_CONFIG: Final = 319
    SEND_BATCH_MESSAGE: Final = 320
    QUERY_CONSUME_QUEUE: Final = 321
    QUERY_DATA_VERSION: Final = 322
    RESUME_CHECK_HALF_MESSAGE: Final = 323
    SEND_REPLY_MESSAGE: Final = 324
    SEND_REPLY_MESSAGE_V2: Final = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT: Final = 326
    ADD_WRITE_PERM_OF_BROKER: Final = 327
    GET_ALL_PRODUCER_INFO: Final = 328
    DELETE_EXPIRED_COMMITLOG: Final = 329
    QUERY_TOPICS_BY_CONSUMER: Final = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER: Final = 345
    GET_TOPIC_CONFIG: Final = 351
    GET_SUBSCRIPTIONGROUP_CONFIG: Final = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN: Final = 353
    LITE_PULL_MESSAGE: Final = 361
    QUERY_ASSIGNMENT: Final = 400
    SET_MESSAGE_REQUEST_MODE: Final = 401
    GET_ALL_MESSAGE_REQUEST_MODE: Final = 402
    GET_BROKER_MEMBER_GROUP: Final = 901
    BROKER_HEARTBEAT: Final = 904
    NOTIFY_MIN_BROKER_ID_CHANGE: Final = 905
    EXCHANGE_BROKER_HA_INFO: Final = 906
    GET_BROKER_HA_STATUS: Final = 907
    RESET_MASTER_FLUSH_OFFSET: Final = 908
    # Skylark's own, asked of brokers that speak CBOR only.
    WATCH_METADATA: Final = 7100


class ResponseCode:
    """How an answer came out."""

    SUCCESS: Final = 0
    SYSTEM_ERROR: Final = 1
    SYSTEM_BUSY: Final = 2
    REQUEST_CODE_NOT_SUPPORTED: Final = 3
    TRANSACTION_FAILED: Final = 4
    FLUSH_DISK_TIMEOUT: Final = 10
    SLAVE_NOT_AVAILABLE: Final = 11
    FLUSH_SLAVE_TIMEOUT: Final = 12
    MESSAGE_ILLEGAL: Final = 13
    SERVICE_NOT_AVAILABLE: Final = 14
    VERSION_NOT_SUPPORTED: Final = 15
    NO_PERMISSION: Final = 16
    TOPIC_NOT_EXIST: Final = 17
    TOPIC_EXIST_ALREADY: Final = 18
    PULL_NOT_FOUND: Final = 19
    PULL_RETRY_IMMEDIATELY: Final = 20
    PULL_OFFSET_MOVED: Final = 21
    QUERY_NOT_FOUND: Final = 22
    SUBSCRIPTION_PARSE_FAILED: Final = 23
    SUBSCRIPTION_NOT_EXIST: Final = 24
    SUBSCRIPTION_NOT_LATEST: Final = 25
    SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26
    FILTER_DATA_NOT_EXIST: Final = 27
    FILTER_DATA_NOT_LATEST: Final = 28
    INVALID_PARAMETER: Final = 29
    TRANSACTION_SHOULD_COMMIT: Final = 200
    TRANSACTION_SHOULD_ROLLBACK: Final = 201
    TRANSACTION_STATE_UNKNOW: Final = 202
    TRANSACTION_STATE_GROUP_WRONG: Final = 203
    NO_BUYER_ID: Final = 204
    NOT_IN_CURRENT_UNIT: Final = 205
    CONSUMER_NOT_ONLINE: Final = 206
    CONSUME_MSG_TIMEOUT: Final = 207
    NO_MESSAGE: Final = 208
    POLLING_FULL: Final = 209
    POLLING_TIMEOUT: Final = 210
    BROKER_NOT_EXIST: Final = 211
    BROKER_DISPATCH_NOT_COMPLETE: Final = 212
    BROADCAST_CONSUMPTION: Final = 213
    FLOW_CONTROL: Final = 215
    NOT_LEADER_FOR_QUEUE: Final = 501
    ILLEGAL_OPERATION: Final = 604
    GO_AWAY: Final = 1500


def _names(codes: type) -> Mapping[int, str]:
    return MappingProxyType({value: name for name, value in vars(codes).items() if name.isupper()})


_REQUEST_NAMES: Final = _names(RequestCode)
_RESPONSE_NAMES: Final = _names(ResponseCode)


def request_name(code: int) -> str:
    """RocketMQ's name of a request code, or the number for one that we do not know."""
    return _REQUEST_NAMES.get(code, str(code))


def response_name(code: int) -> str:
    """RocketMQ's name of a response code, or the number for one that we do not know."""
    return _RESPONSE_NAMES.get(code, str(code))
