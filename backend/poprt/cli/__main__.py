"""`python -m poprt.cli` is the `poprt` command."""

import sys

from simipu.version import describe_poprt

from popef._tools.start import start

sys.exit(start("poprt.cli.command", describe_poprt))
