"""Unsupervised SimCSE: a sentence and itself, seen through different dropout."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from weince_lightning.checkpoints.record import HYPER_PARAMETERS
from weince_lightning.checks import check_flag
from weince_lightning.losses import WEINCELoss
from weince_lightning.module.contrastive import ContrastiveModule
from weince_lightning.module.optimizers import OptimizerName, Schedule
from weince_lightning.module.steps import Stage
from weince_lightning.networks.text import Pooling, TextEncoder

_OF_IMAGES = (
    "backbone_options",
    "channels_last",
    "compile_backbone",
    "image_size",
    "in_channels",
    "projection_dim",
)


class SentenceModule(ContrastiveModule):
    r"""Pretrain a sentence encoder so that a sentence is close to itself and others are apart.

    The same tokens pass twice; the encoder's dropout makes the two views. In training the loss sees
    them behind a head, a linear layer and tanh; in evaluation, and in :meth:`forward`, there is
    none. All else is that of :class:`ContrastiveModule`: steps, checkpoints, callbacks.

    Features of a list of sentences are found as in the example, there with the tokenizer of the
    training, which a checkpoint does not hold. Those of a file are what ``weince predict
    --ckpt_path CHECKPOINT --data.predict_file FILE`` writes, in the order of its lines, and
    ``Trainer.predict`` returns with :class:`~weince_lightning.data.SentenceData`.

    The other arguments are those of :class:`ContrastiveModule`.

    Args:
        encoder: Local folder of a pretrained encoder of transformers, or the name of an
            architecture such as "bert", which then begins with random weights. A checkpoint needs
            no folder any more.
        encoder_options: Settings of that encoder over its own, such as
            ``{"num_hidden_layers": 2, "hidden_dropout_prob": 0.2}``. ``vocab_size`` must hold all
            of the tokenizer's tokens, and ``pad_token_id`` must be the tokenizer's.
        loss: Any module or function from ``(z0, z1)`` to a scalar. None is
            ``WEINCELoss(temperature=0.05)``; SimCSE itself has
            ``InfoNCELoss(temperature=0.05, layout="queries")``.
        pooling: "cls": the output at the first token; "mean": the mean over all tokens.
        has_head: Whether there is a head in training, as in SimCSE; without, the loss sees the
            features.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of its range or a name is unknown.
        ModuleNotFoundError: If transformers is not installed.

    References:
        Gao, Yao, Chen, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP 2021,
        arXiv:2104.08821.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from weince_lightning.data.tokens import Tokens
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "vocab.txt"
        ...     _ = path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nit\nrains\nsnows")
        ...     tokens = Tokens(path)  # or the folder of a pretrained encoder
        >>> module = SentenceModule("bert", {"vocab_size": 7, "hidden_size": 24})
        >>> with torch.no_grad():  # dropout is off after eval alone
        ...     features = module.eval()(tokens(["It rains", "It snows"], max_length=32))
        >>> features.shape
        torch.Size([2, 24])
    """

    backbone: TextEncoder

    def __init__(
        self,
        encoder: str,
        encoder_options: dict[str, Any] | None = None,
        loss: nn.Module | Callable[[Tensor, Tensor], Tensor] | None = None,
        pooling: Pooling = "cls",
        has_head: bool = True,
        learning_rate: float = 3e-5,
        weight_decay: float = 0.0,
        optimizer: OptimizerName = "adamw",
        schedule: Schedule = "linear",
        warmup_fraction: float = 0.0,
        micro_batch_size: int | None = None,
    ) -> None:
        self._has_head = check_flag("has_head", has_head)
        super().__init__(
            TextEncoder(encoder, encoder_options, pooling),
            WEINCELoss(temperature=0.05) if loss is None else loss,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            optimizer=optimizer,
            schedule=schedule,
            warmup_fraction=warmup_fraction,
            micro_batch_size=micro_batch_size,
        )
        for name in _OF_IMAGES:
            self.hparams.pop(name, None)

    def setup(self, stage: str) -> None:
        """Refuse a tokenizer that does not fit the encoder."""
        data = getattr(self.trainer, "datamodule", None)
        vocab_size = getattr(data, "vocab_size", 0)
        if vocab_size > self.backbone.vocab_size:
            raise ValueError(
                f"encoder_options must have a vocab_size of at least {vocab_size}, the tokens of "
                f"the data's tokenizer, got {self.backbone.vocab_size}."
            )
        pad = getattr(data, "pad_token_id", self.backbone.pad_token_id)
        if pad != self.backbone.pad_token_id:
            raise ValueError(
                f"encoder_options must have the pad_token_id of the data's tokenizer, {pad}, got "
                f"{self.backbone.pad_token_id}."
            )

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the features of sentences, as evaluation uses them.

        Args:
            tokens: Token numbers, int64, shape ``(batch, length)``; short sentences are filled up
                with the encoder's ``pad_token_id``.

        Returns:
            Features, shape ``(batch, feature_dim)``.

        Raises:
            TypeError: If the tokens are not integers.
            ValueError: If they do not have that shape, or are more than the encoder takes.
        """
        if tokens.is_floating_point():
            raise TypeError(f"tokens must be integers, got {tokens.dtype}.")
        if tokens.ndim != 2:
            raise ValueError(f"tokens must have shape (batch, length), got {tuple(tokens.shape)}.")
        most = getattr(self.backbone.config, "max_position_embeddings", None)
        if most is not None and tokens.shape[1] > most:
            raise ValueError(
                f"tokens must be at most {most} in a sentence, the encoder's "
                f"max_position_embeddings, got {tokens.shape[1]}. Lower max_length of the data."
            )
        features: Tensor = self.backbone(tokens)
        return features

    def encode(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features and what the loss works on: in evaluation the features themselves."""
        features = self(tokens)
        return features, self.projection_head(features) if self.training else features

    def validation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Any]:
        """Return :meth:`step`, and log ``val/loss`` if the pairs belong together.

        Pairs whose labels are floating-point numbers do so to a degree alone.
        """
        return self._pairs_step(batch, "val", batch_idx, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        """Return :meth:`step`, and log ``test/loss`` if the pairs belong together."""
        return self._pairs_step(batch, "test", batch_idx, dataloader_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the encoder's sizes in place of the folder it came from: its weights are here."""
        super().on_save_checkpoint(checkpoint)
        settings = self.backbone.settings()
        checkpoint[HYPER_PARAMETERS].update(
            encoder=settings["encoder"], encoder_options=settings["options"]
        )

    def _pairs_step(
        self, batch: Any, stage: Stage, batch_idx: int, dataloader_idx: int
    ) -> dict[str, Any]:
        if batch[1].is_floating_point():
            return self.step(batch)
        # One of the loaders of SentenceData has a loss, the first or the second.
        return self._logged_step(batch, stage, batch_idx, dataloader_idx, add_dataloader_idx=False)

    def _count_features(self) -> int:
        return self.backbone.feature_dim

    def _build_head(self, projection_dim: int) -> nn.Module:
        if not self._has_head:
            return nn.Identity()
        return nn.Sequential(nn.Linear(self.feature_dim, self.feature_dim), nn.Tanh())
