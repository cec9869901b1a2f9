"""The files that keep the id which a Controller gave to this broker, in RocketMQ's format. Pure.

An id is taken in steps, so that no two brokers ever get the same one, and a crash between any two loses none:
1. the Controller is asked for the next id (request 1012), and it goes into the temporary file with a check code;
2. the Controller is asked to give it to the broker with that code (1013). It refuses when another has taken the id:
   then the temporary file is removed, and all begins again. The same code may ask again after a crash;
3. the file is written, and the temporary one removed. From now on the broker has its id for good.
The texts: cluster#broker#id, and cluster#broker#id#code.
"""

from enum import Enum
from typing import NamedTuple

from mqcommon.errors import ConfigError

# Ids that Controllers give begin here; 0 is the master's in routes.
FIRST_ID = 1


class Identified(NamedTuple):
    """``check_code`` is "" in the file, and names the asking broker in the temporary one."""

    cluster: str
    broker: str
    broker_id: int
    check_code: str = ""


class Step(Enum):
    """What comes next; see the module."""

    ASK_NEXT_ID = "ask for the next id"
    APPLY = "apply for the id"
    REGISTER = "register"


def check_code(addr: str, now_ms: int) -> str:
    """A code that no other broker has."""
    return f"{addr};{now_ms}"


def encode(identified: Identified) -> bytes:
    cluster, broker, broker_id, code = identified
    return "#".join([cluster, broker, str(broker_id), *([code] if code else [])]).encode()


def decode(data: bytes, path: str, cluster: str, broker: str) -> Identified:
    """Read the file at ``path``. ConfigError when it is damaged, or is that of another broker."""
    try:
        parts = data.decode().strip().split("#")
        found = Identified(parts[0], parts[1], int(parts[2]), *parts[3:])
    except (ValueError, IndexError, TypeError):
        found = None
    if found is None or found.broker_id < FIRST_ID or not (found.cluster and found.broker):
        raise ConfigError(
            f"{path}: {data[:100]!r} is not a broker's identity, cluster#broker#id; restore it from a backup, or remove"
            " it and the broker takes a new id"
        )
    if (found.cluster, found.broker) != (cluster, broker):
        raise ConfigError(
            f"{path}: this store belongs to broker {found.broker} of cluster {found.cluster}, but brokerName and"
            f" brokerClusterName are {broker} and {cluster}; set them to the former, or use another storePathRootDir"
        )
    return found


def next_step(kept: Identified | None, temporary: Identified | None) -> Step:
    """What a broker with these two files does next."""
    if kept is not None:
        return Step.REGISTER
    return Step.ASK_NEXT_ID if temporary is None else Step.APPLY
