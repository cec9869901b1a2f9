"""The driver of mqcommon/raft: disk, network and time."""
