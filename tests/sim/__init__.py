"""A broker set in one thread, without sockets, disks or a clock of its own: what a seed says happens, no more."""
