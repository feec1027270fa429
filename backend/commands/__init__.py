"""The `poplar-triton` command: serves, builds, shows, profiles and installs what the rooms below make.

Only this room starts tritonserver and fetches models; nothing of what a running server needs belongs here.
"""
