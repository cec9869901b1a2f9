"""Accounts in files of a broker: RocketMQ's ACL 1.0 (50 to 54), and why a request is refused, which is our own."""

from remoting.protocol.bodies.acl import AccessExplanation, AclConfig
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.acl import (
    AclVersionResponseHeader,
    DeleteAclConfigRequestHeader,
    ExplainAccessRequestHeader,
    UpdateAclConfigRequestHeader,
    UpdateGlobalWhiteAddrsRequestHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

UPDATE_AND_CREATE_ACL_CONFIG = Request(
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, UpdateAclConfigRequestHeader, NOTHING, NOTHING, NOTHING
)
DELETE_ACL_CONFIG = Request(RequestCode.DELETE_ACL_CONFIG, DeleteAclConfigRequestHeader, NOTHING, NOTHING, NOTHING)
GET_BROKER_CLUSTER_ACL_INFO = Request(
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO, NOTHING, NOTHING, AclVersionResponseHeader, NOTHING
)
UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = Request(
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, UpdateGlobalWhiteAddrsRequestHeader, NOTHING, NOTHING, NOTHING
)
GET_BROKER_CLUSTER_ACL_CONFIG = Request(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, NOTHING, NOTHING, NOTHING, AclConfig)
EXPLAIN_ACCESS = Request(RequestCode.EXPLAIN_ACCESS, ExplainAccessRequestHeader, NOTHING, NOTHING, AccessExplanation)
