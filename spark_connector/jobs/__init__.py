"""Work on whole topics that outgrows one machine, as Spark jobs: each is a program for ``spark-submit``.

copy_topic.py      copies a topic to another cluster; copying.py decides, and copies one queue
audit_topic.py     gaps, disorder and duplicates of a topic; auditing.py (pure) counts them
export_topic.py    appends a topic, from the segments in object storage, to a table; tables.py: Parquet, Delta, Iceberg
session.py         the session of a job, and how its errors are shown
"""
