"""Check that the largest message that the options allow fits into a commit log file.

The check runs when the command starts a broker and when maxMessageSize changes. Tests that make a `Broker` directly may
use smaller files.
"""

from broker.options import BrokerOptions
from mqcommon.errors import ConfigError
from mqcommon.message.layout import BLANK_BYTES, MAX_OVERHEAD_BYTES, MAX_PROPERTIES
from mqcommon.names import RETRY_TOPIC_MAX_LENGTH

# The most that a log record needs besides its body, plus the filler at the end of a file.
OVERHEAD_BYTES = MAX_OVERHEAD_BYTES + RETRY_TOPIC_MAX_LENGTH + MAX_PROPERTIES + BLANK_BYTES


def check_file_size(options: BrokerOptions) -> None:
    """ConfigError when a message of ``maxMessageSize`` does not fit into a file of ``mappedFileSizeCommitLog``."""
    file_bytes, needed = options.mapped_file_size_commit_log, options.max_message_size + OVERHEAD_BYTES
    if file_bytes >= needed:
        return
    most = file_bytes - OVERHEAD_BYTES
    remedy = f"set maxMessageSize={most} or less, or " if most > 0 else ""
    raise ConfigError(
        f"mappedFileSizeCommitLog: a message of maxMessageSize={options.max_message_size} bytes does not fit into a"
        f" file of {file_bytes} bytes; {remedy}set mappedFileSizeCommitLog={needed} or more"
    )
