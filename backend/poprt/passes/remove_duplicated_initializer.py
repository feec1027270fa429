"""Pass remove_duplicated_initializer, under the real tool's names."""

from poprt.passes.folding.elimination import RemoveDuplicatedInitializer

__all__ = [
    "RemoveDuplicatedInitializer",
]
