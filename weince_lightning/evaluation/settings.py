"""The settings of an evaluation, by default those of the paper."""

from dataclasses import dataclass

from weince_lightning.checks import check_flag, check_integer, check_number

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
        check_number("learning_rate", self.learning_rate, above=0.0)
        check_integer("epochs", self.epochs, at_least=1)
        check_integer("batch_size", self.batch_size, at_least=1)
        _check_split(self.val_fraction, self.seeds)
        check_flag("converge", self.converge)


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
        check_integer("k", self.k, at_least=1)
        check_number("temperature", self.temperature, above=0.0)
        _check_split(self.val_fraction, self.seeds)


def _check_split(val_fraction: float, seeds: tuple[int, ...]) -> None:
    check_number("val_fraction", val_fraction, above=0.0)
    check_number("val_fraction", val_fraction, below=1.0)
    if not isinstance(seeds, tuple) or not all(type(seed) is int for seed in seeds):
        raise TypeError(f"seeds must be a tuple of integers, got {seeds!r}.")
    is_in_range = all(0 <= seed < 2**32 for seed in seeds)
    if not seeds or not is_in_range or len({*seeds}) < len(seeds):
        raise ValueError(f"seeds must be different numbers in [0, 2**32 - 1], got {seeds}.")
