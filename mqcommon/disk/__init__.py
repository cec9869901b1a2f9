"""The machine's disk, behind an interface that tests replace.

files.py         FileSystem, the interface, and OsFiles, the machine's own disk
atomic.py        replaces a small file as a whole
secret_file.py   reads a file of secrets, and refuses one that other users may read
descriptors.py   a reserve of file descriptors for writes
page_cache.py    calls of the C library about mapped pages
"""
