"""Users and policies of a broker: RocketMQ's ACL 2.0 (3001 to 3010), and both tables for slaves, which is our own."""

from remoting.protocol.bodies.auth import AclInfo, AclInfos, AuthTables, UserInfo, UserInfos
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.auth import (
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserRequestHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

AUTH_CREATE_USER = Request(RequestCode.AUTH_CREATE_USER, UserRequestHeader, UserInfo, NOTHING, NOTHING)
AUTH_UPDATE_USER = Request(RequestCode.AUTH_UPDATE_USER, UserRequestHeader, UserInfo, NOTHING, NOTHING)
AUTH_DELETE_USER = Request(RequestCode.AUTH_DELETE_USER, UserRequestHeader, NOTHING, NOTHING, NOTHING)
# Without a body when there is no such user, and so for the others that read.
AUTH_GET_USER = Request(RequestCode.AUTH_GET_USER, UserRequestHeader, NOTHING, NOTHING, UserInfo)
AUTH_LIST_USER = Request(RequestCode.AUTH_LIST_USER, ListUsersRequestHeader, NOTHING, NOTHING, UserInfos)
AUTH_CREATE_ACL = Request(RequestCode.AUTH_CREATE_ACL, AclRequestHeader, AclInfo, NOTHING, NOTHING)
AUTH_UPDATE_ACL = Request(RequestCode.AUTH_UPDATE_ACL, AclRequestHeader, AclInfo, NOTHING, NOTHING)
AUTH_DELETE_ACL = Request(RequestCode.AUTH_DELETE_ACL, DeleteAclRequestHeader, NOTHING, NOTHING, NOTHING)
AUTH_GET_ACL = Request(RequestCode.AUTH_GET_ACL, AclRequestHeader, NOTHING, NOTHING, AclInfo)
AUTH_LIST_ACL = Request(RequestCode.AUTH_LIST_ACL, ListAclsRequestHeader, NOTHING, NOTHING, AclInfos)
GET_AUTH_TABLES = Request(RequestCode.GET_AUTH_TABLES, NOTHING, NOTHING, NOTHING, AuthTables)
