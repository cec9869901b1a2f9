"""What handlers of FastStream may ask for."""

from skylark.sdk.integrations.faststream.annotations import *
from skylark.sdk.integrations.faststream.annotations import __all__ as __all__
