"""Program of the figures: ``python -m roller_bench FIGURE``."""

import sys

from roller_bench.figures import main

if __name__ == "__main__":
    sys.exit(main())
