"""The `poprt` command; `python -m poprt.cli` runs it, too.

Other commands that compile models use its options, and run under its limits of time and memory.
"""

from typing import TYPE_CHECKING

from popef._tools.lazy import make_lazy

if TYPE_CHECKING:
    from poprt.cli.public import *  # noqa: F403
else:
    __getattr__, __dir__ = make_lazy(__name__)
