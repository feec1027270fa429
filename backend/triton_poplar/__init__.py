"""The Poplar Triton backend without Triton: states, requests, parameters.

Only `backend/poplar/model.py` uses Triton itself. `poplar_triton.tfserving` serves the same states
without Triton.
"""

from triton_poplar.working_folder import return_to_users_folder

# Before all other modules: they open files when they are imported, such as POPEF_LOG_DEST.
return_to_users_folder()

from popef._tools.version import __version__ as __version__  # noqa: E402
