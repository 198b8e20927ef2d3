"""Encoders by name, the feature dimension of any encoder, and the paper's projection head.

The named ResNets and the vision transformer are torchvision's own classes without the classifier:
their ``state_dict`` has torchvision's key names and loads into torchvision's model (classifier
aside) wherever the shapes are torchvision's.
"""

from weince_lightning.networks.encoders import build_encoder, convnet, feature_dimension
from weince_lightning.networks.projection import projection_head
from weince_lightning.networks.resnets import (
    LARGEST_SMALL_IMAGE,
    resnet18,
    resnet18_slim,
    resnet50,
)
from weince_lightning.networks.vision_transformer import vit_small

__all__ = [
    "LARGEST_SMALL_IMAGE",
    "build_encoder",
    "convnet",
    "feature_dimension",
    "projection_head",
    "resnet18",
    "resnet18_slim",
    "resnet50",
    "vit_small",
]
