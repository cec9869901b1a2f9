"""How long requests take, from the turn of the event loop that reads them to its end, when answers are sent.

All requests of one turn are answered together, so the clock is read twice a turn, and a request costs the raising of an
integer. A request that waits for something (a message, the disk, a slave) is not measured here: other metrics have
these waits.
"""

from collections.abc import Callable, Mapping
from functools import cache
from time import perf_counter

from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.metrics.metric import Column, Histogram, Metric, column
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, RunInTask, SlowHandler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command

RPC_LATENCY = Metric(
    "rocketmq_rpc_latency",
    "histogram",
    "milliseconds",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
    "Time that requests took which were answered without waiting",
)
# A peer could make a row for each code that there is, so answers of unlisted codes are counted under this one.
_OTHER = -1


class _Row:
    __slots__ = ("count", "times")

    def __init__(self) -> None:
        # Requests of the present turn.
        self.count = 0
        self.times = Histogram()


class RpcTimes:
    """Measures how long requests take, by code and result.

    Wrap handlers with `measured` and `measured_slow`, and call `end_turn` at the end of each turn.
    """

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._start = 0.0
        # Rows with requests of this turn.
        self._raised: list[_Row] = []
        self._turning = False
        self._rows: dict[int, dict[int, _Row]] = {}

    def measured(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """``handlers``, measured."""
        return {code: self._measured(code, handler) for code, handler in handlers.items()}

    def measured_slow(self, handlers: Mapping[int, SlowHandler]) -> dict[int, SlowHandler]:
        """Slow ``handlers``, each of which is measured by itself."""
        return {code: self._measured_slow(code, handler) for code, handler in handlers.items()}

    def end_turn(self) -> None:
        """Count the requests of this turn: all of them are handled."""
        if not self._turning:
            return
        self._turning = False
        elapsed_ms = (self._now() - self._start) * 1_000
        for row in self._raised:
            row.times.add(elapsed_ms, row.count)
            row.count = 0
        self._raised.clear()

    def column(self) -> Column:
        """The histograms."""
        rows = []
        for code, by_answer in self._rows.items():
            for answer, row in by_answer.items():
                labels = (
                    "remoting",
                    _request_names().get(code, str(code)),
                    _ANSWERS.get(answer, "other"),
                    "false",
                    "success",
                )
                if any(row.times.counts):
                    rows.append((labels, row.times.copy()))
        return column(RPC_LATENCY, rows)

    def times_of(self, code: int) -> tuple[Histogram, Histogram]:
        """The times of requests with this code: of successful ones, and of failed ones."""
        good, bad = Histogram(), Histogram()
        for answer, row in self._rows.get(code, {}).items():
            (good if answer == ResponseCode.SUCCESS else bad).merge(row.times)
        return good, bad

    def _measured(self, code: int, handler: Handler) -> Handler:
        rows = self._rows.setdefault(code, {})
        raised, now = self._raised, self._now

        def count(code: int) -> None:
            row = rows.get(code) or _row(rows, code)
            if not row.count:
                raised.append(row)
            row.count += 1

        def measured(channel: Channel, request: Command) -> Command | None:
            # The first request of a turn starts the clock for all of them.
            if not self._turning:
                self._turning = True
                self._start = now()
            try:
                response = handler(channel, request)
            except RunInTask:
                raise
            except Exception as error:
                count(_code_of(error))
                raise
            if response is not None:
                # The same as `count`, without the call.
                row = rows.get(response.code) or _row(rows, response.code)
                if not row.count:
                    raised.append(row)
                row.count += 1
            return response

        return measured

    def _measured_slow(self, code: int, handler: SlowHandler) -> SlowHandler:
        rows = self._rows.setdefault(code, {})

        async def measured(channel: Channel, request: Command) -> Command | None:
            start, code = self._now(), None
            try:
                response = await handler(channel, request)
                code = None if response is None else response.code
            except Exception as error:
                code = _code_of(error)
                raise
            finally:
                if code is not None:
                    row = rows.get(code) or _row(rows, code)
                    row.times.add((self._now() - start) * 1_000)
            return response

        return measured


def _row(rows: dict[int, _Row], answer: int) -> _Row:
    key = answer if answer in _ANSWERS else _OTHER
    return rows.setdefault(key, _Row())


def _code_of(error: Exception) -> int:
    """The code of the answer that the server makes of ``error``."""
    return error.code if isinstance(error, RequestRefused) else ResponseCode.SYSTEM_ERROR


_ANSWERS = {code: name.lower() for name, code in vars(ResponseCode).items() if isinstance(code, int)}


@cache
def _request_names() -> dict[int, str]:
    # A NameServer without metrics starts sooner without the descriptions of what brokers serve.
    from skylark.remoting.protocol.requests.table import BY_NAME

    return {request.code: name.lower() for name, request in BY_NAME.items()}
