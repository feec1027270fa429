"""`python -m poprt` is the `poprt` command."""

import sys

from poprt.cli.command import main

sys.exit(main())
