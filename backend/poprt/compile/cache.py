"""The engine cache: a folder of PopEF files, each named by a hash of what it was compiled from."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from simipu import CompileError, package_hash
from simipu.libraries import registered_libraries

from popef._tools.arrays import Array
from popef._tools.staging import Staging
from poprt.compile.executable import Executable
from poprt.options import CompilerOptions

_log = logging.getLogger("poprt")


@dataclass(frozen=True, slots=True)
class EngineCache:
    """Location of one cached executable.

    PopART names the file by the hash of its IR, in decimal. This hash covers everything that an
    executable depends on: graph, weights, options, outputs, and the version of the compiler.
    """

    file: Path

    @classmethod
    def of(
        cls,
        options: CompilerOptions,
        model: onnx.ModelProto,
        weights: Mapping[str, Array],
        outputs: Collection[str] | None,
        batch_axis: int,
    ) -> EngineCache | None:
        """Return the cache entry of a model with separate `weights`; None if caching is off."""
        if not options.enable_engine_caching:
            return None
        digest = hashlib.sha256(model.SerializeToString(deterministic=True))
        for name, value in sorted(weights.items()):
            digest.update(f"{name} {value.dtype} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).view(np.uint8).data)
        kept = None if outputs is None else list(outputs)
        digest.update(
            repr(
                (options.changed(), kept, batch_axis, package_hash(), registered_libraries())
            ).encode()
        )
        number = int.from_bytes(digest.digest()[:8], "little")
        return cls(Path(options.cache_path, f"{number}.popef"))

    def find(self) -> Executable | None:
        """Return the cached executable, or None if there is none or it cannot be read."""
        if not self.file.exists():
            return None
        try:
            found = Executable(self.file)
        except CompileError as error:
            _log.warning("the cached executable is compiled anew: %s", error)
            return None
        _log.info("read %s instead of compiling", self.file)
        return found

    def keep(self, executable: Executable) -> None:
        """Write the executable to the cache atomically; log a warning if it cannot be written."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with Staging() as staging:
                executable.export(staging.open(self.file))
        except OSError as error:
            _log.warning("the executable is not cached: %s: %s", self.file, error.strerror)
