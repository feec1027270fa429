"""`python -m poprt` is the `poprt` command."""

import sys

from poprt.cli import main

sys.exit(main())
