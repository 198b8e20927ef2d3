"""``python -m weince_lightning`` is the command ``weince``."""

from weince_lightning.cli import main

if __name__ == "__main__":
    main()
