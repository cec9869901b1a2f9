"""Options of access control at a NameServer. RocketMQ's NameServers have none."""

import os
from dataclasses import dataclass

from mqcommon.errors import ConfigError
from mqcommon.options.fields import option


@dataclass(frozen=True)
class AccessOptions:
    """Part of the options of NameServers and Controllers."""

    acl_enable: bool = option(
        False, "only administrators of aclFile may register brokers, and change routes, KV config and options"
    )
    acl_file: str = option(
        "", "accounts, in the form of RocketMQ's plain_acl.yml; mode 0600; read again when it changes"
    )
    acl_query_enable: bool = option(
        False, "with aclEnable: queries for routes need the signature of an account, too", mutable=True
    )

    def check_access_options(self) -> None:
        """ConfigError when access control is on and there are no accounts."""
        if self.acl_enable and not self.acl_file:
            raise ConfigError(
                "aclFile: aclEnable needs the file with the accounts; set it, as in aclFile=plain_acl.yml"
            )

    @property
    def acl_path(self) -> str:
        """``aclFile`` as a path."""
        return os.path.expanduser(self.acl_file)
