"""Small models of transformers with random weights, and inputs for them.

A family is a type of configuration: sizes of a small model and the tensors that its models read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SEED = 3
WORDS = 64
"""Words of the vocabulary, special tokens among them."""
BATCH = 2
LENGTH = 12
"""Words of a text."""
SHORT = 6
"""Words of a text that goes into a decoder."""
CHOICES = 3
SIDE = 32
"""Rows and columns of an image."""
SAMPLES = 1600
"""Samples of a sound."""
REGIONS = 5
"""Regions of an image in LXMERT."""

TEXT: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
SPEECH: Mapping[str, Any] = {
    **TEXT,
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 8),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
}
T5: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
BART: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


@dataclass(frozen=True, slots=True)
class Family:
    """A type of configuration in transformers.

    Attributes:
        sizes: Fields of the configuration of a small model.
        inputs: Function that makes the inputs of its models.
        layers: Number of layers, which optimum-graphcore places on one IPU.
    """

    sizes: Mapping[str, Any]
    inputs: Callable[[], dict[str, Any]]
    layers: int = field(default=2)


def make_words(length: int = LENGTH, *shape: int) -> Any:
    """Return random words that are not special."""
    torch: Any = importlib.import_module("torch")
    return torch.randint(5, WORDS, (BATCH, *shape, length))


def make_text() -> dict[str, Any]:
    """Return texts, one of which is shorter than the others."""
    torch: Any = importlib.import_module("torch")
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[-1, LENGTH // 2 :] = 0
    return {"input_ids": make_words(), "attention_mask": mask}


def make_full_text() -> dict[str, Any]:
    """Return texts of one length.

    optimum-graphcore's DeBERTa changes the results of padding. GroupBERT divides the mask of
    transformers, the least float, by -10000: with padding its results in PyTorch are not finite.
    """
    return {"input_ids": make_words()}


def make_pair() -> dict[str, Any]:
    """Return texts for an encoder and for its decoder."""
    return {**make_text(), "decoder_input_ids": make_words(SHORT)}


def make_image() -> dict[str, Any]:
    """Return images."""
    torch: Any = importlib.import_module("torch")
    return {"pixel_values": torch.randn(BATCH, 3, SIDE, SIDE)}


def make_sound() -> dict[str, Any]:
    """Return sounds."""
    torch: Any = importlib.import_module("torch")
    return {"input_values": torch.randn(BATCH, SAMPLES)}


def make_spectrum() -> dict[str, Any]:
    """Return a spectrum of sounds, and a text for the decoder."""
    torch: Any = importlib.import_module("torch")
    return {"input_features": torch.randn(BATCH, 16, 32), "decoder_input_ids": make_words(SHORT)}


def make_text_with_regions() -> dict[str, Any]:
    """Return texts, and features of regions of images."""
    torch: Any = importlib.import_module("torch")
    regions = {
        "visual_feats": torch.randn(BATCH, REGIONS, 24),
        "visual_pos": torch.rand(BATCH, REGIONS, 4),
    }
    return {**make_text(), **regions}


FAMILIES: Mapping[str, Family] = {
    "BertConfig": Family(TEXT, make_text),
    "RobertaConfig": Family(TEXT, make_text),
    "GroupBertConfig": Family(
        {**TEXT, "hidden_size": 64, "intermediate_size": 128}, make_full_text
    ),
    "MPNetConfig": Family(TEXT, make_text),
    "DebertaConfig": Family(
        {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
        make_full_text,
    ),
    "DistilBertConfig": Family(
        {
            "vocab_size": WORDS,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": 64,
        },
        make_text,
    ),
    "GPT2Config": Family(
        {
            "vocab_size": WORDS,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "use_cache": False,
        },
        make_text,
    ),
    "T5Config": Family({**T5, "use_cache": False}, make_pair, 4),
    "MT5Config": Family({**T5, "use_cache": False}, make_pair, 4),
    "BartConfig": Family({**BART, "max_position_embeddings": 64, "use_cache": False}, make_pair, 4),
    "WhisperConfig": Family(
        {
            **BART,
            "num_mel_bins": 16,
            "max_source_positions": 16,
            "max_target_positions": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
            "use_cache": False,
        },
        make_spectrum,
        4,
    ),
    "LxmertConfig": Family(
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_qa_labels": 7,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "l_layers": 2,
            "x_layers": 2,
            "r_layers": 2,
            "visual_feat_dim": 24,
        },
        make_text_with_regions,
        6,
    ),
    "Wav2Vec2Config": Family(
        {**SPEECH, "codevector_dim": 16, "proj_codevector_dim": 16, "num_codevectors_per_group": 8},
        make_sound,
    ),
    "HubertConfig": Family(SPEECH, make_sound),
    "ViTConfig": Family({**TEXT, "image_size": SIDE, "patch_size": 8}, make_image),
    "ConvNextConfig": Family(
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}, make_image, 5
    ),
    "SwinConfig": Family(
        {
            "image_size": SIDE,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        make_image,
    ),
    "CLIPTextConfig": Family(TEXT, make_text),
}
"""Families by the class of their configuration."""


def make_model(cls: Any, config: Any = None) -> Any:
    """Return a model for inference with random weights."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(SEED)
    config = config or make_config(cls.config_class)
    model = cls(config).eval()
    with torch.no_grad():  # biases are zero and norms one otherwise: they would hide a mistake
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def make_config(cls: Any, **sizes: Any) -> Any:
    """Return the configuration of a small model."""
    return cls(**{**FAMILIES[cls.__name__].sizes, **sizes})


def make_inputs(cls: Any) -> dict[str, Any]:
    """Return inputs for a class of models."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(SEED)
    name = cls.__name__
    if name.endswith("EncoderModel"):
        return make_text()
    if name.endswith("ForMultipleChoice"):
        return {"input_ids": make_words(LENGTH, CHOICES)}
    inputs = FAMILIES[cls.config_class.__name__].inputs()
    if name == "BartForSequenceClassification":
        del inputs["decoder_input_ids"]
        inputs["input_ids"][:, -1] = 2  # its last word ends a sentence
    return inputs


def make_tokenizer() -> Any:
    """Return a tokenizer whose words are numbers behind a letter."""
    transformers: Any = importlib.import_module("transformers")
    tokenizers: Any = importlib.import_module("tokenizers")
    special = {
        f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
    }
    names = [*special.values(), *(f"w{number}" for number in range(len(special), WORDS))]
    words = dict(zip(names, range(len(names)), strict=True))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **special,
        model_input_names=["input_ids", "attention_mask"],
    )
