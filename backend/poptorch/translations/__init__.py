"""Operators of torch that its exporter to ONNX lacks or writes wrongly, one family a module."""
