"""Text encoders of transformers, with one feature vector per sentence."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor, nn

from weince_lightning.checks import did_you_mean, import_extra

Pooling = Literal["cls", "mean"]

_NOT_ARGUMENTS = ("architectures", "dtype", "model_type", "torch_dtype", "transformers_version")
"""What a configuration says beside the arguments of the model."""


class TextEncoder(nn.Module):
    """An encoder of transformers from tokens to one feature vector per sentence.

    Args:
        encoder: Local folder of a pretrained model, or the name of an architecture such as "bert",
            which then begins with random weights.
        options: Values of the model's configuration, over those of the folder or the defaults:
            sizes, dropout rates, ``vocab_size``.
        pooling: "cls": the output at the first token; "mean": the mean over all tokens.

    Attributes:
        feature_dim: Length of a feature vector.
        vocab_size: How many tokens there are.
        pad_token_id: The token that fills a sentence up, and that is not attended to.

    Raises:
        ModuleNotFoundError: If transformers is not installed.
        ValueError: If there is no such folder, architecture, option or pooling.
    """

    def __init__(
        self,
        encoder: str,
        options: Mapping[str, Any] | None = None,
        pooling: Pooling = "cls",
    ) -> None:
        super().__init__()
        if pooling not in get_args(Pooling):
            raise ValueError(f'pooling must be "cls" or "mean", got {pooling!r}.')
        transformers = import_extra("transformers", "text", "a text encoder")
        self.pooling = pooling
        self.model = _build(transformers, str(encoder), dict(options or {}))
        # Unused, it would have no gradient, which DistributedDataParallel refuses.
        if getattr(self.model, "pooler", None) is not None:
            self.model.pooler = None
        self.config = self.model.config
        if self.config.pad_token_id is None:
            raise ValueError("encoder_options must name a pad_token_id: the model has none.")
        self.feature_dim: int = self.config.hidden_size
        self.vocab_size: int = self.config.vocab_size
        self.pad_token_id: int = self.config.pad_token_id

    def forward(self, tokens: Tensor) -> Tensor:
        """Return features ``(batch, feature_dim)`` of tokens ``(batch, length)``."""
        is_text = tokens != self.pad_token_id
        outputs = self.model(input_ids=tokens, attention_mask=is_text.long())
        hidden: Tensor = outputs.last_hidden_state
        if self.pooling == "cls":
            return hidden[:, 0]
        weights = is_text.to(hidden.dtype).unsqueeze(-1)
        return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)

    def settings(self) -> dict[str, Any]:
        """Return ``encoder`` and ``options`` that build a model of these sizes anew."""
        kind = type(self.config)
        defaults = kind().to_dict()
        options = {
            name: value
            for name, value in self.config.to_dict().items()
            if name in defaults and value != defaults[name] and name not in _NOT_ARGUMENTS
        }
        return {"encoder": kind.model_type, "options": options}


def _build(transformers: Any, encoder: str, options: dict[str, Any]) -> Any:
    """Read a model from a folder, or make one of an architecture."""
    folder = Path(encoder).expanduser()
    known = transformers.CONFIG_MAPPING
    if not folder.is_dir() and encoder not in known:
        raise ValueError(
            "encoder must be a local folder with a model of transformers or the name of an "
            f'architecture such as "bert", got {encoder!r}, which is neither: nothing is '
            f"downloaded.{did_you_mean(encoder, known)}"
        )
    reader = transformers.AutoConfig
    if folder.is_dir():
        try:
            config = reader.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError) as error:
            raise ValueError(
                "encoder must be a folder that save_pretrained of transformers has written, got "
                f"{encoder!r}: {str(error).splitlines()[0]}"
            ) from error
    else:
        config = reader.for_model(encoder)
    for name in options:
        if not hasattr(config, name):
            raise ValueError(
                f"encoder_options must be settings of a {config.model_type} model, got "
                f"{name!r}.{did_you_mean(name, config.to_dict())}"
            )
    if folder.is_dir():
        config.update(options)
        model = transformers.AutoModel.from_pretrained(
            str(folder), config=config, local_files_only=True
        )
    else:
        model = transformers.AutoModel.from_config(reader.for_model(encoder, **options))
    return model.float().train()
