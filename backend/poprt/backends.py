"""Backends that run a model from Python; not there yet. `poprt.backend.get_session` is."""

from poprt._later import later

_INSTEAD = "poprt.backend.get_session and model_runtime.ModelRunner run models"
Backend = later("backends.Backend", _INSTEAD)
ORTBackend = later("backends.ORTBackend", _INSTEAD)
