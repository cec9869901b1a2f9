"""What the parts of one push consumer share."""

from dataclasses import field

from mqcommon.clock import Clock, SystemClock
from mqcommon.lazy_dataclass import lazy_dataclass
from sdk.client import ClientHandle
from sdk.consumer.failures import Counters
from sdk.consumer.problems import Problems
from sdk.consumer.settings import PushSettings


@lazy_dataclass(frozen=True, slots=True)
class PushContext:
    """The client and the settings of one push consumer, and where its parts note what they did and what failed."""

    client: ClientHandle
    settings: PushSettings
    problems: Problems
    counters: Counters = field(default_factory=Counters)
    clock: Clock = field(default_factory=SystemClock)
