"""torchvision's vision transformer in size "small", without the classifier."""

from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer


def vit_small(
    in_channels: int = 3, image_size: int = 32, patch_size: int | None = None
) -> VisionTransformer:
    """Return torchvision's vision transformer in size "small", without its classifier.

    384 features (the class token), 12 layers, 6 heads.

    Args:
        in_channels: Number of colour channels of the images.
        image_size: Height and width of the images in pixels. Zeros are added at the right and
            below, up to a multiple of the patch size.
        patch_size: Height and width of a patch in pixels, at most ``image_size``. None: the largest
            power of two up to 16 that gives 7 patches a side (4 at 32 pixels, 8 at 64, 16 at 224).

    Raises:
        ValueError: If the patch is larger than the image, or smaller than a pixel.

    Example:
        >>> vit_small(image_size=64).patch_size
        8
    """
    if patch_size is None:
        patch_size = max(size for size in (1, 2, 4, 8, 16) if size == 1 or image_size // size >= 7)
    if not 1 <= patch_size <= image_size:
        raise ValueError(f"patch_size must be between 1 and {image_size}, got {patch_size}.")
    return _SmallVisionTransformer(in_channels, image_size, patch_size)


class _SmallVisionTransformer(VisionTransformer):  # type: ignore[misc]  # torchvision is untyped
    """torchvision's transformer for any number of channels and any image size."""

    def __init__(self, in_channels: int, image_size: int, patch_size: int) -> None:
        padding = -image_size % patch_size
        super().__init__(
            image_size=image_size + padding,
            patch_size=patch_size,
            num_layers=12,
            num_heads=6,
            hidden_dim=384,
            mlp_dim=1536,
        )
        self.padding = padding
        self.heads = nn.Identity()
        if in_channels != 3:
            self.conv_proj = nn.Conv2d(in_channels, 384, patch_size, stride=patch_size)
            # torchvision's rule for its own three channels
            nn.init.trunc_normal_(self.conv_proj.weight, std=(in_channels * patch_size**2) ** -0.5)
            nn.init.constant_(self.conv_proj.get_parameter("bias"), 0.0)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class token's features, shape ``(batch, 384)``."""
        padded = F.pad(images, (0, self.padding, 0, self.padding))
        features: Tensor = super().forward(padded)
        return features
