"""The settings of an evaluation, by default those of the paper."""

from dataclasses import dataclass

_PAPER_SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class LinearSettings:
    """How the linear probe is trained: one layer on the features as they are, by Adam.

    Args:
        learning_rate: Learning rate of Adam, above 0.
        epochs: Passes over the training part, at least 1.
        batch_size: Samples per step, at least 1; a last incomplete batch is used.
        val_fraction: Share of the training samples that is kept for validation, the same of each
            class, in (0, 1).
        seeds: One probe for each: it fixes what is kept, the first weights and the order.
        converge: Instead of Adam, minimise the objective of scikit-learn's
            ``LogisticRegression(C=1)`` until it no longer falls. The paper's 100 epochs stop well
            short of that.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of its range.

    References:
        Erol et al., "WEINCE: When Softmax Fails at the Top", ICML 2026, arXiv:2606.00262.

    Example:
        >>> LinearSettings(epochs=10, seeds=(1,)).learning_rate
        0.0003
    """

    learning_rate: float = 3e-4
    epochs: int = 100
    batch_size: int = 256
    val_fraction: float = 0.2
    seeds: tuple[int, ...] = _PAPER_SEEDS
    converge: bool = False

    def __post_init__(self) -> None:
        """Check."""
        _check_positive("learning_rate", self.learning_rate)
        _check_integer("epochs", self.epochs)
        _check_integer("batch_size", self.batch_size)
        _check_split(self.val_fraction, self.seeds)
        if not isinstance(self.converge, bool):
            raise TypeError(f"converge must be True or False, got {self.converge!r}.")


@dataclass(frozen=True)
class KNNSettings:
    r"""How nearest neighbours vote: each with weight :math:`\exp(s / \tau)`, s by cosine.

    Args:
        k: Neighbours that vote, at least 1; more than the bank holds means all.
        temperature: Temperature :math:`\tau` of the votes, positive, dimensionless.
        val_fraction: Share of the training samples that asks for its labels, as the test samples
            do; the others are the bank. In (0, 1), the same of each class.
        seeds: One split for each.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of its range.

    Example:
        >>> KNNSettings(k=20).temperature
        0.1
    """

    k: int = 50
    temperature: float = 0.1
    val_fraction: float = 0.2
    seeds: tuple[int, ...] = _PAPER_SEEDS

    def __post_init__(self) -> None:
        """Check."""
        _check_integer("k", self.k)
        _check_positive("temperature", self.temperature)
        _check_split(self.val_fraction, self.seeds)


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be above 0 and finite, got {value}.")


def _check_integer(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")


def _check_split(val_fraction: float, seeds: tuple[int, ...]) -> None:
    _check_positive("val_fraction", val_fraction)
    if val_fraction >= 1:
        raise ValueError(f"val_fraction must be below 1, got {val_fraction}.")
    if not isinstance(seeds, tuple) or not all(type(seed) is int for seed in seeds):
        raise TypeError(f"seeds must be a tuple of integers, got {seeds!r}.")
    is_in_range = all(0 <= seed < 2**32 for seed in seeds)
    if not seeds or not is_in_range or len({*seeds}) < len(seeds):
        raise ValueError(f"seeds must be different numbers in [0, 2**32 - 1], got {seeds}.")
