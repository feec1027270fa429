"""Check like a client that the servers are ready and that models answer a request of zeros.

`helm test` runs this in the servers' image: `ask.py URL [MODEL]`. Standard library only.
"""

import json
import sys
import time
import urllib.error
import urllib.request

SECONDS, PAUSE_SECONDS = 60, 1


def ask(url, body=None):
    """Return the JSON of a response, or None if it is empty."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=SECONDS) as answer:  # noqa: S310  of the chart
        return json.loads(answer.read() or b"null")


def wait_until_ready(url):
    """Return when the servers are ready. Exit with the last error if they are not ready in time."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return ask(f"{url}/v2/health/ready")
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"{url}: expected ready within {SECONDS} s, found {error}"
                ) from None
        time.sleep(PAUSE_SECONDS)


def make_zeros(tensor):
    """Return an input for a tensor of the metadata, with 1 for each dynamic size."""
    shape = [max(size, 1) for size in tensor["shape"]]
    count = 1
    for size in shape:
        count *= size
    zero = {"BOOL": False, "BYTES": ""}.get(tensor["datatype"], 0)
    return {
        "name": tensor["name"], "datatype": tensor["datatype"], "shape": shape,
        "data": [zero] * count
    }  # fmt: skip


def main():
    """Run the checks. Exit with status 0 if every response arrived."""
    url, *models = sys.argv[1:]
    wait_until_ready(url)
    print(f"{url}: ready")
    for model in models:
        inputs = [make_zeros(tensor) for tensor in ask(f"{url}/v2/models/{model}")["inputs"]]
        try:
            answer = ask(f"{url}/v2/models/{model}/infer", {"inputs": inputs})
        except urllib.error.HTTPError as error:
            raise SystemExit(
                f"model {model}: expected a response, found {error}: {error.read()!r}"
            ) from None
        print(f"model {model}: answered {[output['name'] for output in answer['outputs']]}")


if __name__ == "__main__":
    main()
