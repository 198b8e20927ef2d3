"""The global random numbers in a checkpoint, for what draws from them: dropout, say."""

import random
from typing import Any

import numpy as np
import torch


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators in values that load with ``weights_only=True``.

    Args:
        device: Whose generator is included, beside torch's on the CPU, NumPy's and Python's.
    """
    version, words, gauss = random.getstate()
    _, key, *rest = np.random.get_state()
    states = {
        "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(np.asarray(key).astype(np.int64)), *rest],
        "python": [version, torch.tensor(words), gauss],
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: dict[str, Any], device: torch.device) -> None:
    """Set the global generators to the states that :func:`random_states` returned."""
    torch.set_rng_state(states["torch"].cpu())
    key, *rest = states["numpy"]
    np.random.set_state(("MT19937", key.cpu().numpy().astype(np.uint32), *rest))
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
