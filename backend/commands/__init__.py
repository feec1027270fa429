"""The `poplar-triton` command: serves, builds, shows, profiles and installs what the rooms below make.

Only this room starts servers and fetches models; nothing of what a running Triton needs belongs here.
`tfserving` is a server itself, of TensorFlow Serving's protocols.
"""
