"""RocketMQ's remoting protocol: the frames and their contents (protocol/), and connections (net/)."""
