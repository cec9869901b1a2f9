"""The two kinds of bucket: both are a `Bucket` of mqcommon/tier/bucket.py.

objects.py    S3, GCS and Azure, and what speaks their protocols
directory.py  a directory of the machine, or of NFS
"""
