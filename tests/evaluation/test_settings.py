import pytest

from weince_lightning.evaluation import KNNSettings, LinearSettings


def test_the_defaults_are_the_papers():
    linear, knn = LinearSettings(), KNNSettings()
    assert (linear.learning_rate, linear.epochs, linear.batch_size) == (3e-4, 100, 256)
    assert (knn.k, knn.temperature) == (50, 0.1)
    for settings in (linear, knn):
        assert settings.seeds == (1, 2, 3, 4, 5)
        assert settings.val_fraction == 0.2


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (LinearSettings, {"learning_rate": 0.0}, "learning_rate must be above 0"),
        (LinearSettings, {"epochs": 0}, "epochs must be at least 1, got 0"),
        (LinearSettings, {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (LinearSettings, {"val_fraction": 1.0}, "val_fraction must be below 1"),
        (LinearSettings, {"seeds": ()}, "seeds must be different numbers"),
        (LinearSettings, {"seeds": (1, 1)}, "seeds must be different numbers"),
        (KNNSettings, {"seeds": (-1,)}, "seeds must be different numbers"),
        (KNNSettings, {"k": 0}, "k must be at least 1, got 0"),
        (KNNSettings, {"temperature": float("nan")}, "temperature must be above 0"),
        (KNNSettings, {"val_fraction": 0}, "val_fraction must be above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        kind(**arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (LinearSettings, {"epochs": 1.5}, "epochs must be an integer"),
        (LinearSettings, {"converge": "false"}, "converge must be True or False"),
        (LinearSettings, {"seeds": [1]}, "seeds must be a tuple"),
        (KNNSettings, {"temperature": "0.1"}, "temperature must be a number"),
        (KNNSettings, {"k": True}, "k must be an integer"),
    ],
)
def test_other_kinds_are_refused(kind, arguments, message):
    with pytest.raises(TypeError, match=message):
        kind(**arguments)
