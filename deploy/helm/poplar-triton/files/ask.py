"""Ask the servers as a client does: whether they are ready, and a model for an answer to zeros.

`helm test` runs it in the servers' image: `ask.py URL [MODEL]`. Standard library only.
"""

import json
import sys
import time
import urllib.error
import urllib.request

SECONDS, PAUSE_SECONDS = 60, 1


def ask(url, body=None):
    """The JSON of an answer, or None where it is empty."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=SECONDS) as answer:  # noqa: S310  of the chart
        return json.loads(answer.read() or b"null")


def wait_until_ready(url):
    """Return once the servers are ready; the last error where they are not in time."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return ask(f"{url}/v2/health/ready")
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"{url}: expected ready within {SECONDS} s, found {error}") from None
        time.sleep(PAUSE_SECONDS)


def make_zeros(tensor):
    """An input of the model's metadata, with 1 for each size that is left open."""
    shape = [max(size, 1) for size in tensor["shape"]]
    count = 1
    for size in shape:
        count *= size
    zero = {"BOOL": False, "BYTES": ""}.get(tensor["datatype"], 0)
    return {
        "name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": [zero] * count
    }  # fmt: skip


def main():
    """Ask; the status is 0 where every answer came."""
    url, *models = sys.argv[1:]
    wait_until_ready(url)
    print(f"{url}: ready")
    for model in models:
        inputs = [make_zeros(tensor) for tensor in ask(f"{url}/v2/models/{model}")["inputs"]]
        try:
            answer = ask(f"{url}/v2/models/{model}/infer", {"inputs": inputs})
        except urllib.error.HTTPError as error:
            raise SystemExit(f"model {model}: expected an answer, found {error}: {error.read()!r}") from None
        print(f"model {model}: answered {[output['name'] for output in answer['outputs']]}")


if __name__ == "__main__":
    main()
