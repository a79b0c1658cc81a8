"""`python -m revremat`: the same as the command `revremat`."""

import sys

from revremat._cli import main

sys.exit(main())
