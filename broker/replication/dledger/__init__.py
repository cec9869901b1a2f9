"""DLedger mode: a group of brokers whose commit log is agreed by Raft. docs/dledger.md says why it is as it is.

entry_index.py  the side file: term, place and CRC of each entry
log_entries.py  the entries as mqcommon/raft sees them: references to bytes of the CommitLog
log_disk.py     what a member keeps on disk, and how entries travel
proposals.py    what the leader's broker stores becomes entries
member.py       the part: the group's port, and the role of this broker
"""
