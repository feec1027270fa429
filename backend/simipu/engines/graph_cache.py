"""Cache of lowered graphs: a later load of a program takes the computed graph from a file of the
user's cache folder, and imports nothing that checks and lowers graphs. A graph for OpenVINO is
stored as OpenVINO has compiled it, with its weights, which all processes share by the file.

The name of an entry is a digest of everything that the lowered graph depends on: the program, the
options with their limits, the kernels, whether products of 8 bits saturate on this machine, the
versions and source files of what lowers, and the types and shapes of the weights. The lowered graph
also holds the values of some weights: those that ONNX Runtime cannot read in place. Which these are
is known only after the first load. So there are two files: one of the first name, which lists these
weights, and one whose name is the digest of the first name and of their values.

A file's author must not change the answers of another model. So a weight is left out of the digest
only if lowering names it as the source of a weight that is read in place, and holds its values
nowhere else (`Lowered.sources`). Where arrays are in memory says nothing: two weights of a program
may be the same array, and those of the next program with this graph may not.

    0        32  SHA-256 digest of the name and all that follows
    32        8  size of the head, little endian
    40           head: JSON, padded to a multiple of 64 bytes from the start
                 the compiled graph, the model, then the weights that are in no file of the model

An entry is written after ONNX Runtime has loaded its graph. Only this user can read or write it
(`private_folder`), because a graph of the cache is not checked again. Graphs of isolated engines
are not cached: their processes are not trusted, and can write nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
from google import protobuf

import popef
from popef._tools.arrays import Array
from popef._tools.version import __version__
from simipu.accelerators import describe_engines, uses_openvino
from simipu.engines.computed import GraphOptions, Lowered, Weights
from simipu.executable import Program
from simipu.kernels import find_kernels, warn_of_none
from simipu.numerics.options import KernelUse, Numerics
from simipu.processes.private_folder import PrivateFolder, find_cache_folder
from simipu.saturation import products_saturate
from simipu.version import find_onnx_version

MAX_ENTRIES, MAX_BYTES = 4096, 1 << 30
MAX_ENTRY_BYTES = 1 << 27
"""Maximum bytes of an entry; a graph that holds more is lowered by every load."""
MAX_COMPILED_BYTES, MAX_COMPILED_ENTRY_BYTES = 1 << 32, 1 << 30
"""Maximum bytes of all compiled graphs and of one; they are in a folder of their own."""
_ALIGNMENT = 64
"""Alignment of a compiled graph in its entry: OpenVINO copies weights that have less."""
_DIGEST_BYTES, _SIZE_BYTES = 32, 8
_FORMAT = 4
"""Version of the entries' format."""

_log = logging.getLogger("simipu")


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight of a lowered graph: the data of the program's weight `source` under another name,
    type and shape. Without a source the entry holds the data, of `num_bytes`."""

    name: str
    source: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int

    def view(self, weights: Weights, held: memoryview) -> Array:
        """Return the weight, not copied; `held` begins with its data if it has no source."""
        data = weights[self.source] if self.source else np.frombuffer(held[: self.num_bytes], "u1")
        return np.ascontiguousarray(data).reshape(-1).view(self.dtype).reshape(self.shape)


class CacheEntry:
    """The entry of a program that is lowered to a set of kernels. `write` it once the graph has
    been loaded."""

    def __init__(
        self,
        program: Program,
        weights: Weights,
        options: GraphOptions,
        numerics: Numerics | None,
        kernels: KernelUse,
    ) -> None:
        self._weights = weights
        self._name = _digest_facts(program, options, numerics, kernels, weights)
        self._folder = _find_folder(options)

    @property
    def max_bytes(self) -> int:
        """Maximum size of an entry."""
        return self._folder.max_entry_bytes

    def read(self) -> Lowered | None:
        """Return the lowered graph, or None if there is no entry."""
        lowered = _read(self._folder, self._name, self._weights)
        if lowered is not None and lowered.rounds and not find_kernels().are_there:
            warn_of_none()
        return lowered

    def write(self, lowered: Lowered) -> None:
        """Write the entry. One that cannot be written is only logged."""
        try:
            _write(self._folder, self._name, lowered, self._weights)
        except OSError as error:
            _log.info("the graph is not cached: %s: %s", self._folder.path, error.strerror)


def _find_folder(options: GraphOptions) -> PrivateFolder:
    path, limits = find_cache_folder("graphs"), (MAX_BYTES, MAX_ENTRY_BYTES)
    if uses_openvino(options.accelerators):
        path = find_cache_folder("openvino")
        limits = MAX_COMPILED_BYTES, MAX_COMPILED_ENTRY_BYTES
    return PrivateFolder(path, MAX_ENTRIES, *limits)


def _read(folder: PrivateFolder, name: str, weights: Weights) -> Lowered | None:
    listed = _read_entry(folder, name)
    if listed is None:
        return None
    with suppress(ValueError, KeyError, TypeError):  # weights that a damaged entry lists
        name = _digest_values(name, json.loads(bytes(listed)), weights)
        entry = _read_entry(folder, name)
        if entry is not None:
            return _decode(entry, weights)
    return None


def _write(folder: PrivateFolder, name: str, lowered: Lowered, weights: Weights) -> None:
    entries, pieces = [], []
    for weight_name, value in lowered.weights.items():
        source = lowered.sources.get(weight_name, "")
        data = b"" if source else np.ascontiguousarray(value).tobytes()
        entries.append(_Weight(weight_name, source, value.dtype.str, value.shape, len(data)))
        pieces.append(data)
    in_place = {weight.source for weight in entries}
    copied = [name for name in lowered.reads if name not in in_place]
    others = {
        field.name: getattr(lowered, field.name)
        for field in fields(Lowered)
        if field.name not in ("compiled", "model", "sources", "weights")
    }
    sizes = {"compiled": len(lowered.compiled), "model": len(lowered.model)}
    encoded = json.dumps(
        {"fields": others, "weights": list(map(asdict, entries)), **sizes}
    ).encode()
    encoded += b" " * (-(_DIGEST_BYTES + _SIZE_BYTES + len(encoded)) % _ALIGNMENT)
    size = len(encoded).to_bytes(_SIZE_BYTES, "little")
    content = [size, encoded, lowered.compiled, lowered.model, *pieces]
    if sum(map(len, content)) + _DIGEST_BYTES > folder.max_entry_bytes:
        return
    _write_entry(folder, _digest_values(name, copied, weights), content)
    _write_entry(folder, name, [json.dumps(copied).encode()])


def _decode(entry: memoryview, weights: Weights) -> Lowered:
    start = _SIZE_BYTES + int.from_bytes(entry[:_SIZE_BYTES], "little")
    head = json.loads(bytes(entry[_SIZE_BYTES:start]))
    middle = start + head["compiled"]
    end = middle + head["model"]
    compiled, model = entry[start:middle], bytes(entry[middle:end])
    values = dict[str, Array]()
    for each in head["weights"]:
        weight = _Weight(**each)
        values[weight.name] = weight.view(weights, entry[end:])
        end += weight.num_bytes
    sources = {each["name"]: each["source"] for each in head["weights"] if each["source"]}
    return Lowered(model, values, compiled=compiled, sources=sources, **head["fields"])


def _read_entry(folder: PrivateFolder, name: str) -> memoryview | None:
    content = folder.read(name)
    if content is None:
        return None
    if content[:_DIGEST_BYTES] != _digest_entry(name, [content[_DIGEST_BYTES:]]):
        _log.warning("%s is damaged and not used; the graph is made again", folder.path / name)
        return None
    return content[_DIGEST_BYTES:]


def _write_entry(folder: PrivateFolder, name: str, content: Sequence[bytes | memoryview]) -> None:
    folder.write(name, [_digest_entry(name, content), *content])


def _digest_entry(name: str, content: Sequence[bytes | memoryview]) -> bytes:
    digest = hashlib.sha256(name.encode())
    for piece in content:
        digest.update(piece)
    return digest.digest()


def _digest_values(name: str, copied: Sequence[str], weights: Weights) -> str:
    """Return the name of the entry of the graph with these values."""
    digest = hashlib.sha256(f"values {name}".encode())
    for tensor in copied:
        value = np.ascontiguousarray(weights[tensor]).reshape(-1).view(np.uint8)
        digest.update(hashlib.sha256(value.data).digest())
    return digest.hexdigest()


def _digest_facts(
    program: Program,
    options: GraphOptions,
    numerics: Numerics | None,
    kernels: KernelUse,
    weights: Weights,
) -> str:
    is_quantized = any(word in program.graph for word in (b"Linear", b"Integer"))
    engines = describe_engines(options.accelerators)
    if engines:
        engines += f" {_read_processor()} {os.environ.get('ONEDNN_MAX_CPU_ISA')}"
    facts = (
        _digest_software(),
        (options, options.num_cores, numerics, kernels, find_kernels().instructions, engines),
        is_quantized and products_saturate(),
        replace(program, graph=b""),
        sorted((name, value.dtype.str, value.shape) for name, value in weights.items()),
    )
    digest = hashlib.sha256(hashlib.sha256(program.graph).digest())
    for fact in facts:
        digest.update(hashlib.sha256(repr(fact).encode()).digest())
    return digest.hexdigest()


@cache
def _read_processor() -> str:
    """Return what the system tells of the first processor, without what changes."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as stream:
        first = stream.read().split("\n\n", 1)[0].splitlines()
        return "\n".join(line for line in first if not line.startswith(("cpu MHz", "bogomips")))
    return platform.processor()


@cache
def _digest_software() -> str:
    return hashlib.sha256(repr(_find_versions()).encode()).hexdigest()


def _find_versions() -> dict[str, object]:
    """Return the versions of everything that lowers graphs, and when the files of this project
    changed: an installation from a work tree keeps its version."""
    simipu = Path(__file__).parents[1]
    folders = (simipu, simipu.parent / "onnxgraph", Path(popef.__path__[0]))
    return {
        "format": _FORMAT,
        "onnx": find_onnx_version(),
        "protobuf": protobuf.__version__,
        "popef": __version__,
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "sources": [sorted(_iter_files(folder)) for folder in folders],
    }


def _iter_files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the names of the Python files and libraries in a folder, with their sizes and times, in
    whole seconds: a layer of a container image holds no more."""
    for inside, _, names in os.walk(folder):
        for name in names:
            if name.endswith((".py", ".so")):
                status = os.stat(path := os.path.join(inside, name))
                yield path, status.st_size, int(status.st_mtime)
