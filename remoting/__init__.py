"""RocketMQ's remoting protocol: the frames and their contents (protocol/), and connections (net/)."""

if __name__ == "remoting":
    from skylark.old_names import lend

    lend(__name__)
