"""What the parts of one push consumer share."""

from dataclasses import field

from skylark.mqcommon.clock import Clock, SystemClock
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.client import ClientHandle
from skylark.sdk.consumer.failures import Counters
from skylark.sdk.consumer.problems import Problems
from skylark.sdk.consumer.settings import PushSettings


@lazy_dataclass(frozen=True, slots=True)
class PushContext:
    """The client and the settings of one push consumer, and where its parts count their work and report failures."""

    client: ClientHandle
    settings: PushSettings
    problems: Problems
    counters: Counters = field(default_factory=Counters)
    clock: Clock = field(default_factory=SystemClock)
