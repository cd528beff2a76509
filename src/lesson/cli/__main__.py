"""Entry point of `python -m lesson.cli`."""

import sys

from lesson.cli import main

if __name__ == "__main__":
    sys.exit(main())
