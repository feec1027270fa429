"""The Poplar Triton backend without Triton: states, requests, parameters.

Only `backend/poplar/model.py` uses Triton itself. `poplar_triton.tfserving` serves the same states
without Triton.
"""

from popef._tools.version import __version__ as __version__
