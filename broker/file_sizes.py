"""Whether the largest message that the options allow fits into a file of the commit log.

Looked at when a broker is started by its command, and when maxMessageSize changes; stores of tests may have smaller
files.
"""

from broker.options import BrokerOptions
from mqcommon.errors import ConfigError
from mqcommon.message.layout import BLANK_BYTES, MAX_OVERHEAD_BYTES, MAX_PROPERTIES
from mqcommon.names import RETRY_TOPIC_MAX_LENGTH

# What a record of the log may have besides its body, and the filler that ends a file.
OVERHEAD_BYTES = MAX_OVERHEAD_BYTES + RETRY_TOPIC_MAX_LENGTH + MAX_PROPERTIES + BLANK_BYTES


def check_file_size(options: BrokerOptions) -> None:
    """ConfigError when a message of ``maxMessageSize`` has no room in a file of ``mappedFileSizeCommitLog``."""
    file_bytes, needed = options.mapped_file_size_commit_log, options.max_message_size + OVERHEAD_BYTES
    if file_bytes >= needed:
        return
    most = file_bytes - OVERHEAD_BYTES
    remedy = f"set maxMessageSize={most} or less, or " if most > 0 else ""
    raise ConfigError(
        f"mappedFileSizeCommitLog: a file of {file_bytes} bytes has no room for a message of"
        f" maxMessageSize={options.max_message_size} bytes; {remedy}set mappedFileSizeCommitLog={needed} or more"
    )
