"""`python -m lesson` runs the command `lesson`."""

import sys

from lesson.cli import main

if __name__ == "__main__":
    sys.exit(main())
