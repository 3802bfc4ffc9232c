"""``python -m extremax`` is ``extremax``."""

from extremax.cli import main

if __name__ == "__main__":
    main()
