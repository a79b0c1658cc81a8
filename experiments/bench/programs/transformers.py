"""Stacks of equal transformer layers, from the models that `train.py` trains."""

from typing import Any

import revremat as rr
from experiments import step
from experiments.bench.programs._entry import Entry, Size
from experiments.configs import gpt, gpt_7b, vit_digits
from experiments.configs.common import Experiment, override

_SMALL = {
    "tiny": {
        "num_layers": 2,
        "num_heads": 2,
        "width": 16,
        "mlp_width": 32,
        "batch_size": 8,
    },
    "cpu": {
        "num_layers": 6,
        "num_heads": 4,
        "width": 96,
        "mlp_width": 384,
        "batch_size": 8,
    },
}
_SMALL_TEXT = {"tiny": {"seq_len": 8, "vocab_size": 64}, "cpu": {"vocab_size": 256}}
_SMALL_IMAGE = {"tiny": {}, "cpu": {"image_size": 16, "batch_size": 32}}
_ALL_FSDP = {"data": 1, "fsdp": None, "model": 1}


def _problem(
    name: str, config: Experiment, target: Any, size: Size, small: Any, real: Any
) -> rr.Problem:
    on_cards = size in ("card", "real")
    changes = real if on_cards else _SMALL[size] | small[size] | _ALL_FSDP
    found = step.problem(override(config, changes), target)
    return rr.Problem(found.loss, found.specs, found.step, found.donate, name=name)


def gpt2_xl(
    target: Any, size: Size, attention: str = "plain", **changes: Any
) -> rr.Problem:
    """GPT-2 XL; `changes` are of its experiment."""
    real = changes | {
        "vocab_size": 50_257,
        "seq_len": 1024,
        "width": 1600,
        "num_layers": 24 if size == "card" else 48,
        "num_heads": 25,
        "mlp_width": 6400,
        "model.dtype": "bfloat16",
        "model.attention": attention,
        "batch_size": 8,
    }
    small = {size: changes | {**given} for size, given in _SMALL_TEXT.items()}
    return _problem("gpt2_xl", gpt.config, target, size, small, real)


def _llama_7b(target: Any, size: Size, attention: str = "plain") -> rr.Problem:
    real = {
        "fsdp": 4,
        "model": 2,
        "seq_len": 2048,
        "batch_size": 16,
        "model.attention": attention,
    }
    small = {
        size: changes | {"model.dtype": "float32"}
        for size, changes in _SMALL_TEXT.items()
    }
    small["cpu"]["seq_len"] = 128
    return _problem("llama_7b", gpt_7b.config, target, size, small, real)


def _gpt_22b(target: Any, size: Size, attention: str = "plain") -> rr.Problem:
    real = {
        "vocab_size": 51_200,
        "seq_len": 2048,
        "width": 6144,
        "num_layers": 48,
        "num_heads": 64,
        "mlp_width": 24_576,
        "model.dtype": "bfloat16",
        "model.attention": attention,
        "batch_size": 4,
        "fsdp": 1,
        "model": 8,
    }
    return _problem("gpt_22b", gpt.config, target, size, _SMALL_TEXT, real)


def _vit_l_384(target: Any, size: Size, attention: str = "plain") -> rr.Problem:
    real = {
        "image_size": 384,
        "channels": 3,
        "patch_size": 16,
        "num_classes": 1000,
        "width": 1024,
        "num_layers": 24,
        "num_heads": 16,
        "mlp_width": 4096,
        "model.dtype": "bfloat16",
        "model.attention": attention,
        "batch_size": 32 if size == "card" else 64,
    }
    return _problem("vit_l_384", vit_digits.config, target, size, _SMALL_IMAGE, real)


ENTRIES = (
    Entry(
        "gpt2_xl",
        "standard",
        "h100:1",
        gpt2_xl,
        "GPT-2 XL (Radford et al. 2019): 48 layers of 1600, 8 x 1024 tokens",
        has_kernel=True,
    ),
    Entry(
        "llama_7b",
        "standard",
        "h100:8",
        _llama_7b,
        "Llama 7B's shape: 32 layers of 4096, 16 x 2048 tokens, FSDP 4 x TP 2",
        has_kernel=True,
    ),
    Entry(
        "gpt_22b",
        "standard",
        "h100:8",
        _gpt_22b,
        "the 22B GPT of Korthikanti et al. 2022: 48 layers of 6144, 4 x 2048, TP 8",
        has_kernel=True,
    ),
    Entry(
        "vit_l_384",
        "standard",
        "h100:1",
        _vit_l_384,
        "ViT-L/16 at 384 x 384 (Dosovitskiy et al. 2020), 64 images",
        has_kernel=True,
    ),
)
