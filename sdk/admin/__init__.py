"""Administration: the client `Admin`, and the plans of what takes several steps.

client.py           Admin, one method per operation, and merges answers; requests.py: which servers it asks
dead_letters.py     reads the dead letters of a group and sends them again; resent_marks.py: which were sent again;
                    tool_send.py: a send without a producer
dead_letter_files.py  dead letters as JSON lines or Parquet
targets.py          the broker processes of a cluster; scope.py: which of them a change is for
topology.py         sets, topics and groups with their lags (pure); topology_picture.py: the same as SVG (pure)
route_diff.py       what NameServers tell differently (pure)
reshaping.py        the steps to other numbers of queues (pure)
static_topics.py    makes, grows and moves static topics; remapping.py: the steps (pure)
topic_changes.py    makes, changes and deletes topics; order_records.py: ordered topics, and what would fail their sends
reports/            what an administrator learns, as dataclasses, and the functions that ask for it
failures.py         an error as one line that says what to do next
"""
