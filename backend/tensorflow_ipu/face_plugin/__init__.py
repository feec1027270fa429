"""Plug-ins of TensorFlow's compiler."""
