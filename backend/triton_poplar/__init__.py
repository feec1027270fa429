"""The Poplar Triton backend without Triton: states, requests, parameters; and the `poplar-triton` command.

`backend/poplar/model.py` is the only file that meets Triton itself.
"""
