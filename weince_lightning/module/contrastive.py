"""The Lightning module: an encoder and a projection head under any loss over two views."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from weince_lightning.checkpoints.saving import save_atomically
from weince_lightning.checks import check_choice, check_flag, check_integer, check_number
from weince_lightning.losses import ContrastiveTerms, WEINCELoss
from weince_lightning.module.batches import check_images, views_and_labels
from weince_lightning.module.compiling import compile_for_training, run_plainly
from weince_lightning.module.fit_checks import (
    warn_of_accumulated_batches,
    warn_of_local_batch_norm,
    warn_of_missing_tail,
    warn_of_time_limit,
)
from weince_lightning.module.initial_weights import load_initial_weights
from weince_lightning.module.micro_batches import encode_in_micro_batches
from weince_lightning.module.optimizers import (
    OptimizerName,
    Schedule,
    build_optimizer,
    build_scheduler,
)
from weince_lightning.module.random_states import random_states, restore_random_states
from weince_lightning.module.steps import LoggingModule
from weince_lightning.networks import build_encoder, feature_dimension, projection_head
from weince_lightning.networks.encoders import EncoderName


class ContrastiveModule(LoggingModule):
    r"""Pretrain an encoder so that two views of an image end up close and other images apart.

    Each view goes through encoder and projection head on its own, as in the paper's code and
    lightly's, so that BatchNorm normalises each view by its own statistics.

    Checkpoints hold the global random numbers, so that a training that is resumed ends as if it had
    not been stopped: with :class:`~weince_lightning.data.VisionData` from any step, with a plain
    shuffling loader from the end of an epoch. Within one, Lightning starts such a loader anew; a
    loader with ``state_dict`` and ``load_state_dict`` goes on. On several processes the random
    numbers of the first are saved for all: they are the same after ``seed_everything`` as long as
    all processes draw alike.

    To change a part, override it: :meth:`encode` (from images to features and projections),
    :meth:`step` (from a batch to the loss) or :meth:`configure_optimizers`.

    Checkpoints hold all arguments, those of a subclass too, and :meth:`load_from_checkpoint` builds
    the module again, with its loss. It asks for backbones, losses and other objects that are not
    of this package and were not given to LightningCLI by their class paths.

    Args:
        backbone: "convnet", "resnet18", "resnet18_slim", "resnet50", "vit_small",
            "torchvision:NAME", "timm:NAME", or a module from images to features ``(batch,
            features)``.
        loss: Any module or function from the projections ``(z0, z1)`` of the two views to a
            scalar: ours, lightly's, your own. None is :class:`WEINCELoss` as the paper has it.
        in_channels: Number of colour channels of the images, at least 1.
        image_size: Height and width of the images in pixels, at least 1.
        projection_dim: Length of the projections, at least 1.
        learning_rate: Learning rate after warm-up, above 0.
        weight_decay: Weight decay of all parameters but biases and normalisation layers, at least
            0. LARS needs it above 0, since lightly's adapts decayed parameters alone.
        optimizer: "adam", "adamw" or "lars" (momentum 0.9).
        schedule: Learning rate after warm-up: "constant", "cosine" down to 0.1 % at the end, or
            "linear", which would reach 0 a step after the last.
        warmup_fraction: Share of the training steps over which the learning rate rises linearly,
            in ``[0, 1)``; 0.1 of 100 epochs are 10 epochs.
        backbone_options: Further arguments of a named backbone, such as
            ``{"small_image_stem": False}``; see :func:`weince_lightning.networks.build_encoder`.
        micro_batch_size: Largest number of images that the encoder takes at a time in training, at
            least 1: its memory is that of so many images, and the loss still sees the whole batch.
            The backward runs the encoder once more, so a step takes a third longer, or more where
            micro-batches are too small to fill the device; see
            :func:`weince_lightning.module.encode_in_micro_batches`. The gradient is that of the
            whole batch, but for what is random (dropout draws anew for each micro-batch) and for
            BatchNorm: it normalises each micro-batch by its own statistics, and its running
            statistics move once per micro-batch. None: a whole view at a time, computed once.
        channels_last: Whether the backbone's weights and images lie channels last in memory, in
            which convolutions on NVIDIA's tensor cores, and many on CPUs, are faster. The numbers
            differ by rounding alone.
        compile_backbone: Whether torch.compile makes the backbone faster in training. The first
            step takes up to minutes; it needs a C++ compiler on CPUs and Triton on GPUs. Validation
            runs as without, and checkpoints are the same. What changes with every step outside of
            its tensors, such as a counter, makes it compile again and again.
        init_from: The encoder whose weights the backbone starts from: a file as
            :func:`~weince_lightning.checkpoints.read_encoder` takes it (a checkpoint of ours or of
            lightly, an export, the weights of a model), "torchvision:NAME" or "timm:NAME". It is
            not opened where the weights come from a checkpoint: in :meth:`load_from_checkpoint` and
            in commands with ``--ckpt_path``. None: random weights.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of its range, a name is unknown, or the weights of
            ``init_from`` are not those of the backbone.
        FileNotFoundError: If there is no file ``init_from``.

    References:
        Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations",
        ICML 2020, arXiv:2002.05709.

    Example:
        >>> module = ContrastiveModule("convnet", in_channels=1, image_size=16)
        >>> views = [torch.rand(4, 1, 16, 16), torch.rand(4, 1, 16, 16)]
        >>> sorted(module.step((views, torch.zeros(4))))
        ['features', 'labels', 'loss', 'projections', 'terms']
    """

    def __init__(
        self,
        # A module before other names: what can be imported is none.
        backbone: EncoderName | nn.Module | str = "resnet18",
        loss: nn.Module | Callable[[Tensor, Tensor], Tensor] | None = None,
        in_channels: int = 3,
        image_size: int = 32,
        projection_dim: int = 64,
        learning_rate: float = 3e-4,
        weight_decay: float = 0.0,
        optimizer: OptimizerName = "adam",
        schedule: Schedule = "constant",
        warmup_fraction: float = 0.0,
        backbone_options: dict[str, Any] | None = None,
        micro_batch_size: int | None = None,
        channels_last: bool = False,
        compile_backbone: bool = False,
        init_from: str | Path | None = None,
    ) -> None:
        super().__init__()
        # Plain floats, not NumPy's: the optimizer's state repeats them, and must load safely.
        learning_rate = float(check_number("learning_rate", learning_rate, above=0.0))
        weight_decay = float(check_number("weight_decay", weight_decay, at_least=0.0))
        warmup_fraction = float(check_number("warmup_fraction", warmup_fraction, at_least=0.0))
        check_number("warmup_fraction", warmup_fraction, below=1.0)
        check_choice("optimizer", optimizer, get_args(OptimizerName))
        check_choice("schedule", schedule, get_args(Schedule))
        if optimizer == "lars" and weight_decay == 0.0:
            raise ValueError(
                'weight_decay must be above 0 with optimizer "lars", got 0. lightly\'s LARS adapts '
                "the step of decayed parameters alone; SimCLR takes 1e-6."
            )
        if isinstance(loss, type) or not (loss is None or callable(loss)):
            raise TypeError(f"loss must be an nn.Module instance or a function, got {loss!r}.")
        if not isinstance(backbone_options, (dict, NoneType)):
            raise TypeError(f"backbone_options must be a dict or None, got {backbone_options!r}.")
        self.in_channels = check_integer("in_channels", in_channels, at_least=1)
        self.image_size = check_integer("image_size", image_size, at_least=1)
        check_integer("projection_dim", projection_dim, at_least=1)
        if micro_batch_size is not None:
            check_integer("micro_batch_size", micro_batch_size, at_least=1)
        self.micro_batch_size = micro_batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.optimizer: OptimizerName = optimizer
        self.schedule: Schedule = schedule
        self.warmup_fraction = warmup_fraction
        self._resumed_states: dict[str, Any] = {}
        self.channels_last = check_flag("channels_last", channels_last)
        self.compile_backbone = check_flag("compile_backbone", compile_backbone)

        self.backbone = build_encoder(backbone, in_channels, image_size, **(backbone_options or {}))
        if init_from is not None:
            init_from = str(init_from)  # plain, as checkpoints hold it
            load_initial_weights(self.backbone, init_from)
        if channels_last:
            self.backbone.to(memory_format=torch.channels_last)
        self.feature_dim = self._count_features()
        self.projection_head = self._build_head(projection_dim)
        self.loss = WEINCELoss() if loss is None else loss
        self._save_settings()

    def forward(self, images: Tensor) -> Tensor:
        """Compute the features of images, as evaluation uses them.

        Args:
            images: Images in ``[0, 1]``, shape ``(batch, in_channels, image_size, image_size)``.

        Returns:
            Features, shape ``(batch, feature_dim)``.

        Raises:
            ValueError: If the images do not have that shape.
            TypeError: If they are not floating-point numbers of the module's precision.
        """
        check_images(images, (self.in_channels, self.image_size, self.image_size), self.dtype)
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.backbone(images)
        return features

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the features of images and their projections, on which the loss works.

        Args:
            images: Images in ``[0, 1]``, shape ``(batch, in_channels, image_size, image_size)``.

        Returns:
            Features ``(batch, feature_dim)`` and projections ``(batch, projection_dim)``.
        """
        features = self(images)
        return features, self.projection_head(features)

    def step(self, batch: Sequence[Any]) -> dict[str, Any]:
        """Compute the loss of a batch, and what callbacks may want to see.

        Args:
            batch: ``(views, labels)``: two image tensors in ``[0, 1]``, and the class of each
                image, int64, shape ``(batch,)``, -1 if unknown. What follows is ignored, but for
                ``ids`` of a named tuple, what each image shows: a loss of ours takes no images of
                equal ids for negatives of each other.

        Returns:
            ``loss`` (scalar with gradient), ``terms`` (:class:`ContrastiveTerms`, None for a loss
            without such), ``features`` and ``projections`` (pairs, one tensor per view), and
            ``labels``; all but ``loss`` detached. In evaluation a single sample has no negative:
            its ``loss`` and ``terms`` are None. A loss of this package, and with it all of these,
            has no samples that a distributed sampler repeats in validation and test.

        Raises:
            TypeError: If the batch or the loss's value is of the wrong kind.
            ValueError: If the shapes do not fit the module or each other.
        """
        views, labels = views_and_labels(batch)
        (features0, projections0), (features1, projections1) = map(self._encode_view, views)
        count = self._count_samples(len(labels))
        if count.own < len(labels):
            features0, features1, projections0, projections1, labels = (
                rows[: count.own]
                for rows in (features0, features1, projections0, projections1, labels)
            )
        loss, terms = None, None
        if self.training or count.together > 1:
            ids = getattr(batch, "ids", None)
            given = () if ids is None else (ids[: count.own],)
            loss, terms = self._compute_loss(projections0, projections1, *given)
            self._weight = count.together
        return {
            "loss": loss,
            "terms": terms,
            "features": (features0.detach(), features1.detach()),
            "projections": (projections0.detach(), projections1.detach()),
            "labels": labels,
        }

    def on_fit_start(self) -> None:
        """Save so that no kill can tear a file; warn of settings that do not do what they seem."""
        save_atomically(self.trainer)
        warn_of_local_batch_norm(self.trainer, self)
        warn_of_accumulated_batches(self.trainer)
        warn_of_time_limit(self.trainer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the settings, and the global random numbers: of several processes, the first's."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["random_states"] = random_states(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with the saved random numbers if training is resumed."""
        super().on_load_checkpoint(checkpoint)
        if self._trainer is not None and self._trainer.training and "random_states" in checkpoint:
            self._resumed_states = checkpoint["random_states"]
            restore_random_states(self._resumed_states, self._trainer.strategy.root_device)

    def on_train_start(self) -> None:
        """Undo what was drawn since, such as by a loader that starts, if an epoch is resumed.

        A new epoch, in contrast, needs what the start of its loader has drawn. A backbone that is
        to be compiled is so from here on.
        """
        warn_of_missing_tail(self.trainer, self.loss)
        if self._resumed_states and self.trainer.fit_loop.restarting:
            restore_random_states(self._resumed_states, self.trainer.strategy.root_device)
        self._resumed_states = {}
        if self.compile_backbone:
            compile_for_training(self.backbone)

    def on_train_end(self) -> None:
        """Go back to the plain backbone."""
        if self.compile_backbone:
            run_plainly(self.backbone)

    def predict_step(
        self, batch: Sequence[Any], batch_idx: int, dataloader_idx: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the features and labels of a batch ``(images, labels)``."""
        images, labels, *_ = batch
        return self(images), labels

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return the optimizer and, unless the learning rate is constant, its schedule by step."""
        optimizer = build_optimizer(
            self.optimizer, self.parameters(), self.learning_rate, self.weight_decay
        )
        if self.schedule == "constant" and self.warmup_fraction == 0.0:
            return optimizer
        if self.trainer.limit_train_batches == 0:  # no step is taken, and Lightning knows no length
            return optimizer
        num_steps = self.trainer.estimated_stepping_batches
        scheduler = build_scheduler(optimizer, self.schedule, num_steps, self.warmup_fraction)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def _count_features(self) -> int:
        return feature_dimension(self.backbone, self.in_channels, self.image_size)

    def _build_head(self, projection_dim: int) -> nn.Module:
        return projection_head(self.feature_dim, projection_dim)

    def _encode_view(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Encode one view, in micro-batches where they spare memory."""
        if self.micro_batch_size is None or not (self.training and torch.is_grad_enabled()):
            return self.encode(images)
        return encode_in_micro_batches(self, self.encode, images, self.micro_batch_size)

    def _compute_loss(
        self, z0: Tensor, z1: Tensor, *ids: Tensor
    ) -> tuple[Tensor, ContrastiveTerms | None]:
        """Call the loss once, by its ``terms`` where it has them."""
        compute_terms = getattr(self.loss, "terms", None)
        if callable(compute_terms):
            terms: ContrastiveTerms = compute_terms(z0, z1, *ids)
            return terms.loss, terms._replace(loss=terms.loss.detach())
        loss = self.loss(z0, z1)
        if not isinstance(loss, Tensor) or loss.ndim != 0:
            kind = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss must return a scalar tensor, got {kind}.")
        return loss, None
