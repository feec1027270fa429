"""The `poplar-triton` command: serves, builds, shows, profiles and installs what the rooms below
make.

Only this room starts servers and fetches models. A running Triton needs nothing of it. `tfserving`
is itself a server for TensorFlow Serving's protocols.
"""

import os

# Nothing is imported until a command handles interrupts; see popef/__init__.py.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from popef._tools.version import __version__ as __version__
else:

    def __getattr__(name):
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from popef._tools.version import __version__

        return __version__


# Before ONNX Runtime is imported: see simipu/__init__.py.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
