"""Collective operators of the shards of one replica."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.operators.within_replica_ops")
