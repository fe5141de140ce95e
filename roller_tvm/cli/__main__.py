"""``python -m roller_tvm.cli``."""

import sys

from roller_tvm.cli import main

sys.exit(main())
