"""One request of each code about a topic and a group: all fields and members that any request has."""

import json
from collections.abc import Sequence

from tests.intruder import wire
from tests.intruder.wire import Answer, Signer

#: Codes of answers; the text by which a broker with accounts (ACL 1.0) refuses, as RocketMQ's does.
NO_PERMISSION, NOT_SUPPORTED, REFUSAL = 16, 3, "AclException"
#: A place in the log where no message begins: a message there would be of others.
NO_MESSAGE = "1000000000"
REFUSED, HANDLED, UNKNOWN = ".", "+", "-"


def fields_about(name: str) -> dict[str, str]:
    """The fields of a request about the topic and the group ``name``."""
    topics = ("topic", "b", "originTopic", "lmqTopic", "parentTopic", "topicName")
    groups = (
        "consumerGroup", "producerGroup", "group", "groupName", "a", "srcGroup", "destGroup", "lmqParentTopic"
    )  # fmt: skip
    numbers = (
        "queueId", "e", "d", "f", "h", "j", "l", "flag", "sysFlag", "queueOffset", "commitOffset", "maxMsgNums",
        "timestamp", "index", "beginTimestamp", "endTimestamp", "bornTimestamp", "g", "subVersion", "delayLevel",
        "suspendTimeoutMillis", "pollTime", "holdMillis", "bornTime", "initMode", "popTime", "reviveQid",
        "commitLogOffset", "tranStateTableOffset", "commitOrRollback", "masterFlushOffset", "brokerId", "maxNum",
        "filterType", "invisibleTime", "readQueueNums", "writeQueueNums", "perm", "defaultTopicQueueNums", "count",
    )  # fmt: skip
    texts = {
        "c": "TBW102", "defaultTopic": "TBW102", "k": "false", "m": "false", "order": "false", "i": "", "n": "broker-a",
        "clientID": "an-intruder", "clientId": "an-intruder", "msgId": "7F00000100002A9F0000000000000000", "key": "k",
        "subscription": "*", "expressionType": "TAG", "topicFilterType": "SINGLE_TAG", "consumeMessageDirectly": "x",
        "statsName": "TOPIC_PUT_NUMS", "statsKey": name, "username": "admin-account", "subject": "User:admin-account",
        "policyType": "Custom", "resource": "*", "accessKey": "admin-account", "namespace": "n", "value": "v",
        "extraInfo": "0 0 0 0 0 broker-a 0 0", "brokerName": "broker-a", "clusterName": "DefaultCluster", "cluster": "",
        "brokerAddr": "127.0.0.1:1", "haServerAddr": "127.0.0.1:2", "consumeGroup": name, "transactionId": "x",
        "brokerAddress": "127.0.0.1:1", "messageId": "x", "properties": "", "newBrokerId": "9", "masterEpoch": "1",
        "member": "n9", "address": "127.0.0.1:1", "attributes": "", "offset": NO_MESSAGE,
    }  # fmt: skip
    return {**dict.fromkeys(numbers, "0"), **dict.fromkeys(topics, name), **dict.fromkeys(groups, name), **texts}


def body_about(name: str) -> bytes:
    """The body of any request about the topic and the group ``name``: one object that has the members of all."""
    queue = {"topic": name, "brokerName": "broker-a", "queueId": 0}
    subscription = {"topic": name, "subString": "*", "expressionType": "TAG"}
    consumer = {
        "groupName": name, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription],
    }  # fmt: skip
    entry = {"resource": "*", "actions": ["All"], "decision": "Allow"}
    ack = {"c": name, "t": name, "r": "0", "so": 0, "rq": 0, "q": 0, "pt": 0, "it": 0, "b": ""}
    members = {
        "topic": name, "topicName": name, "group": name, "groupName": name, "consumerGroup": name, "mqSet": [queue],
        "clientID": "an-intruder", "clientId": "an-intruder", "producerDataSet": [{"groupName": name}],
        "consumerDataSet": [consumer], "subscriptionData": subscription, "topicConfigList": [{"topicName": name}],
        "groupConfigList": [{"groupName": name}], "topicList": [name], "groupNameList": [name],
        "username": "a-new-user", "password": "a-new-secret",
        "userType": "Super", "userStatus": "enable", "subject": "User:little-account",
        "policies": [{"policyType": "Custom", "entries": [entry]}], "brokerName": "broker-a", "acks": [ack],
        "syncStateSet": [9], "syncStateSetEpoch": 1,
        "clients": [{"clientId": "of-a-proxy", "consumerDataSet": [consumer]}],
    }  # fmt: skip
    return json.dumps(members).encode()


async def outcomes(addr: str, codes: Sequence[int], name: str, who: Signer | None) -> tuple[str, list[Answer]]:
    """For each code one letter, and the answers."""
    fields, body = fields_about(name), body_about(name)
    frames = [wire.request(code, number, fields, body, who) for number, code in enumerate(codes)]
    answers = await wire.ask(addr, frames)
    return "".join(map(outcome, answers)), answers


def outcome(answer: Answer) -> str:
    """Whether the request was refused, or handled, with whatever result, or is none of this daemon's."""
    if answer.code == NO_PERMISSION or REFUSAL in answer.remark:
        return REFUSED
    return UNKNOWN if answer.code == NOT_SUPPORTED else HANDLED
