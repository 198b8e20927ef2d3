"""Checkpoints as other programs write them: the paper's code, lightly, torchvision, ours."""

import copy

import torch
import torchvision
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


def scramble(module):
    """Give BatchNorm other statistics than a new one has, so that a lost one shows."""
    generator = torch.Generator().manual_seed(1)
    for name, buffer in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    return module.eval()


def resnet(name="resnet18", *, small=True, in_channels=3, v1_stride=False):
    """A ResNet as the paper's code builds it from torchvision's, its classifier an identity."""
    encoder = getattr(torchvision.models, name)()
    if small:
        encoder.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        encoder.maxpool = nn.Identity()
    for block in encoder.modules() if v1_stride else ():
        if hasattr(block, "conv3"):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, (1, 1)
    encoder.fc = nn.Identity()
    return scramble(encoder)


class AuthorsSimCLR(nn.Module):
    """The model of the paper's released code."""

    def __init__(self, encoder, features=512, projection_dim=64):
        super().__init__()
        self.encoder = encoder
        self.projector = nn.Sequential(
            nn.Linear(features, features, bias=False),
            nn.ReLU(),
            nn.Linear(features, projection_dim, bias=False),
        )


class LightlySimCLR(LightningModule):
    """The model of lightly's tutorials."""

    def __init__(self, network=None):
        super().__init__()
        network = torchvision.models.resnet18() if network is None else network
        self.backbone = nn.Sequential(*list(network.children())[:-1])
        self.projection_head = SimCLRProjectionHead(512, 512, 128)
        self.criterion = NTXentLoss()

    def forward(self, images):
        return self.projection_head(self.backbone(images).flatten(start_dim=1))

    def training_step(self, batch, batch_idx):
        return self.criterion(self(batch), self(batch.flip(-1)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        generator = torch.Generator().manual_seed(0)
        return DataLoader(torch.rand(4, 3, 32, 32, generator=generator), 4)


def quiet_trainer(folder, **arguments):
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        max_epochs=1,
        **arguments,
    )


def save_with_trainer(module, path):
    """Write what Lightning writes for a module that is not trained."""
    trainer = quiet_trainer(path.parent)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(path)
    return path


def features(encoder, size=16, in_channels=3):
    generator = torch.Generator().manual_seed(2)
    images = torch.rand(2, in_channels, size, size, generator=generator)
    with torch.no_grad():
        return copy.deepcopy(encoder).eval()(images).flatten(1)
