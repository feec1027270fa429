"""`python -m poprt.cli` is the `poprt` command."""

import sys

from poprt.cli.command import main

sys.exit(main())
