"""Progress bars, as Lightning draws them."""

from typing import Any

from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm


def progress_bar(description: str, total: int | None, done: int = 0) -> Any:
    """Return a bar on standard error; where that is no terminal, it stays quiet.

    Args:
        description: What is being done.
        total: Steps in all, None if that is not known.
        done: Steps that need not be done again.
    """
    return Tqdm(desc=description, total=total, initial=done, disable=None, leave=False)
