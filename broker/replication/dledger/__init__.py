"""DLedger mode: a group of brokers whose commit log is agreed by Raft. docs/operate/dledger.md says why it is as it is.

entry_file.py     a file of entries: term, place and CRC of each in its slot
entry_index.py    all files of entries: adds, cuts, mends and finds entries
log_entries.py    the entries as mqcommon/raft sees them: references to bytes of the CommitLog
group_store.py    how to tell the store of a member
log_disk.py       what a member keeps on disk, and how entries travel
mending.py        a damaged entry is written again as another member has it
begin_anew.py     a member that has lost promised entries: its store is moved aside
proposing.py      messages that the leader's broker stores become entries
agreed_tables.py  changes of topics, groups and users become entries, too
following.py      a member that does not lead; followers.py what a leader shows of the others
member.py         the part: the group's port, and the role of this broker; gate.py who may speak at that port
"""
