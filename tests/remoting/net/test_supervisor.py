"""Several processes of one daemon: the page that their supervisor makes of theirs."""

from skylark.remoting.net.supervisor import merged_pages


def test_pages_are_put_together_by_metric() -> None:
    one = '# HELP a what\n# TYPE a gauge\na{b="1"} 1\n# HELP c what\n# TYPE c counter\nc 5\n'
    two = '# HELP c what\n# TYPE c counter\nc{b="2"} 6\n# HELP a what\n# TYPE a gauge\na{b="2"} 2\n'
    assert merged_pages([one, two]) == (
        '# HELP a what\n# TYPE a gauge\na{b="1"} 1\na{b="2"} 2\n# HELP c what\n# TYPE c counter\nc 5\nc{b="2"} 6\n'
    )
    assert merged_pages([]) == ""
