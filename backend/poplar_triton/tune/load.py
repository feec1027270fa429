"""Load on a server: clients that each send the same request again as soon as they have its
answer.

The requests are zeros, which every model accepts. The clients are threads of this process and take
some of the processor time, the same for all that is compared.
"""

from __future__ import annotations

import http.client
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from popef._tools.zero_requests import LENGTH_HEADER, ZeroInput, encode_head
from poplar_triton.errors import ServerError

_REPLY_SECONDS = 60.0
"""Maximum time of one request."""
_OK = 200
NUM_WINDOWS = 3
"""Number of windows into which a measurement is divided."""
MAX_CLIENTS = 256


@dataclass(frozen=True, slots=True)
class Load:
    """Result of a measurement: requests a second in each window, and the 99th percentile of the
    latency in ms."""

    rates: tuple[float, ...]
    p99_ms: float

    @property
    def per_second(self) -> float:
        """Return the median of the windows."""
        return statistics.median(self.rates)


class _Client(threading.Thread):
    """A client that repeats a request until `stop`."""

    def __init__(self, address: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._request = ("POST", path, body, headers)
        self._connection = http.client.HTTPConnection(address, timeout=_REPLY_SECONDS)
        self._stops = False
        self.answers: list[tuple[float, float]] = []
        """When each answer came, and how long it took, in seconds."""
        self.error = ""

    def run(self) -> None:
        try:
            while not self._stops:
                start = time.perf_counter()
                self._connection.request(*self._request)
                answer = self._connection.getresponse()
                content = answer.read()
                end = time.perf_counter()
                if answer.status != _OK:
                    self.error = content[:300].decode("utf-8", "replace")
                    return
                self.answers.append((end, end - start))
        except (OSError, http.client.HTTPException) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self._connection.close()

    def stop(self) -> None:
        self._stops = True


def measure(
    address: str,
    model: str,
    inputs: Sequence[ZeroInput],
    num_clients: int,
    window_seconds: float,
    warm_up_seconds: float,
) -> Load:
    """Load the model of the server at host:port with `num_clients` clients, and measure it in
    windows after a warm-up. Raises ServerError for a request that fails."""
    head = encode_head(inputs, binary_outputs=True).encode()
    body = head + bytes(sum(source.num_bytes for source in inputs))
    path = f"/v2/models/{quote(model, safe='')}/infer"
    headers = {LENGTH_HEADER: str(len(head))}
    clients = [_Client(address, path, body, headers) for _ in range(num_clients)]
    for client in clients:
        client.start()
    try:
        time.sleep(warm_up_seconds)
        begin = time.perf_counter()
        time.sleep(window_seconds * NUM_WINDOWS)
    finally:
        for client in clients:
            client.stop()
        for client in clients:
            client.join()
    if error := next((client.error for client in clients if client.error), ""):
        raise ServerError(f"a request of zeros failed: {error}")
    answers = [answer for client in clients for answer in client.answers]
    return _summarise(answers, begin, window_seconds)


def _summarise(answers: Sequence[tuple[float, float]], begin: float, window_seconds: float) -> Load:
    counts = [0] * NUM_WINDOWS
    times = []
    for end, seconds in answers:
        window = int((end - begin) // window_seconds)
        if 0 <= window < NUM_WINDOWS:
            counts[window] += 1
            times.append(seconds)
    if not times:
        raise ServerError(
            f"no request was answered within {window_seconds * NUM_WINDOWS:.1f} s; give a larger "
            "--budget-seconds"
        )
    times.sort()
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    return Load(tuple(count / window_seconds for count in counts), 1e3 * p99)
