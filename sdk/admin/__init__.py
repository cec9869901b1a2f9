"""Administration: the client `Admin`, and the plans of changes in several steps.

client.py           Admin, one method per operation, and merges answers; requests.py: which servers it asks
dead_letters.py     reads the dead letters of a group and resends them; resent_marks.py: which were resent;
                    tool_send.py: a send without a producer
dead_letter_files.py  dead letters as JSON lines or Parquet
targets.py          the broker processes of a cluster; scope.py: the brokers that a change is for
topology.py         sets, topics and groups with their lags (pure); topology_picture.py: the topology as SVG (pure)
route_diff.py       differences between the answers of NameServers (pure)
reshaping.py        the steps that change a topic's numbers of queues (pure)
static_topics.py    makes, grows and moves static topics; remapping.py: the steps (pure)
topic_changes.py    makes, changes and deletes topics; order_records.py: ordered topics, and changes that would
                    fail their sends
reports/            the answers for administrators as dataclasses, and the functions that fetch them
failures.py         an error as one line that says what to do next
"""
