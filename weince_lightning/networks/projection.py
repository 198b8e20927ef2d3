"""The paper's projection head."""

from torch import nn


def projection_head(feature_dim: int, projection_dim: int) -> nn.Module:
    """Return the paper's projection head: two linear layers without bias, ReLU between.

    Args:
        feature_dim: Length of the feature vectors, and width of the hidden layer.
        projection_dim: Length of the projections.

    Returns:
        lightly's ``ProjectionHead``, from ``(batch, feature_dim)`` to ``(batch, projection_dim)``.

    Example:
        >>> import torch
        >>> projection_head(512, 64)(torch.zeros(2, 512)).shape
        torch.Size([2, 64])
    """
    # Imported here: lightly's models import timm wherever that is installed.
    from lightly.models.modules.heads import ProjectionHead

    head: nn.Module = ProjectionHead(
        [
            (feature_dim, feature_dim, None, nn.ReLU(), False),
            (feature_dim, projection_dim, None, None, False),
        ]
    )
    return head
