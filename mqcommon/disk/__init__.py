"""The machine's disk, behind an interface that tests replace.

files.py         FileSystem, the interface, and OsFiles, the machine's own disk, with a reserve of descriptors
atomic.py        replaces a small file as a whole
secret_file.py   reads a file of secrets, and refuses a file that other users may read
"""
