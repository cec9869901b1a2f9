"""The descriptor of a mailbox, which one thread watches and another one writes to."""

import os
import select

from skylark.sdk.integrations.kombu.mailbox import Mailbox


def is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def test_a_closed_mailbox_keeps_its_descriptor_while_a_thread_may_wake_it() -> None:
    mailbox = Mailbox()
    descriptor = mailbox.descriptor
    mailbox.close()
    read, write = os.pipe()
    try:
        assert descriptor not in (read, write)
        mailbox.wake()
        assert not is_readable(descriptor)
        del mailbox
        again, other = os.pipe()
        os.close(again)
        os.close(other)
        assert descriptor in (again, other)
    finally:
        os.close(read)
        os.close(write)
