"""The process of a daemon: its first lines, its last lines, and its service manager.

start.py          what a console command imports first
start_report.py   errors on stderr while there is no log
systemd.py        sd_notify
open_files.py     the limit of open files
instances.py      several processes of one daemon
malloc.py         what the C library does with freed memory
"""
