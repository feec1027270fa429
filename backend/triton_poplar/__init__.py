"""The Poplar Triton backend without Triton: states, requests, parameters.

`backend/poplar/model.py` is the only file that meets Triton itself; `commands.tfserving` serves the same
states without one.
"""
