"""Pass that packs samples of different lengths into one, and the rules it follows."""

from poprt.passes.packing import packed_transformer

__all__ = ["packed_transformer"]
