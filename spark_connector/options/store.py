"""The options of reading a store directory, and which others have no meaning there."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from mqcommon.errors import UserError
from mqcommon.options.fields import option, options_of
from spark_connector.options.connection import ConnectionOptions
from spark_connector.options.select import SQL92

# Besides those of connections: how brokers are asked.
_ASKING = ("pullbatchsize", "pulltimeoutms", "numretries", "retryintervalms", "consumergroup")


@dataclass(frozen=True)
class StoreOptions:
    """Where the store is; the fields of `ReadOptions` for that."""

    store_path: str = option(
        "", "instead of asking brokers: read this store directory of a broker, or a copy of it, at this path everywhere"
    )
    broker_name: str = option(
        "", "with `storePath`: the broker's name, for `brokerName` and JSON options; else the directory's name"
    )

    @property
    def directory(self) -> str:
        """The absolute path of the store."""
        return os.path.abspath(os.path.expanduser(self.store_path))

    @property
    def name_of_broker(self) -> str:
        """The name of the broker whose store it is."""
        return self.broker_name or os.path.basename(self.directory)

    def check_store(self, given: Iterable[str]) -> None:
        """Raise UserError if the options ``given`` (lower-case keys) do not go together with the store, or its lack."""
        names = set(given)
        if not self.store_path:
            if self.broker_name:
                raise UserError("option brokerName is for storePath only; read single brokers with option assign")
            return
        if "://" in self.store_path:
            raise UserError(
                f"option storePath: {self.store_path!r} is a URL; give the path of a local or mounted directory"
            )
        asking = {one.key.lower(): one.key for one in options_of(ConnectionOptions)}
        asking |= {one.key.lower(): one.key for one in options_of(type(self)) if one.key.lower() in _ASKING}
        useless = [key for name, key in asking.items() if name in names]
        if useless:
            raise UserError(
                f"option {useless[0]} is for brokers, and storePath reads a directory without one; leave out"
                f" {' and '.join(useless)}, or leave out storePath to read from brokers"
            )
        if "expressiontype" in names and getattr(self, "expression_type", "") == SQL92:
            raise UserError(
                "option expressionType: SQL92 conditions are evaluated by brokers, and storePath reads without one;"
                " give tags, or filter the DataFrame by its columns with where(...)"
            )
