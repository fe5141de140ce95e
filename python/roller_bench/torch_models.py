"""Models of torchvision, timm and transformers, made from their configurations with random weights; no TVM.

``python -m roller_bench.torch_models NAME FOLDER`` writes NAME.onnx and the inputs; an environment with torch runs it.
`open_inductor` opens the same module, weights and all, compiled by torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roller_bench.families import torchvision_models
from roller_bench.running import Arrays, Running, keep_inputs
from roller_bench.torch_running import opened_module

SEED = 0
#: Tokens of a vocabulary that inputs are drawn from.
WORDS = 1000
Made = tuple[Any, dict[str, Any]]


def pictures(name: str, size: int = 224, batch: int = 1, **options: Any) -> Made:
    """Return a network of torchvision and its pictures."""
    import torch

    module = torchvision_models().get_model(name, weights=None, **options)
    return module, {"pixels": torch.rand(batch, 3, size, size) - 0.5}


def segmented(name: str, size: int) -> Made:
    """Return a network of torchvision that classifies pixels; it gives a tensor in place of a dictionary."""
    import torch

    class Pixels(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torchvision_models().get_model(name, weights=None, weights_backbone=None, num_classes=21)

        def forward(self, pixels: Any) -> Any:
            return self.net(pixels)["out"]

    return Pixels(), {"pixels": torch.rand(1, 3, size, size) - 0.5}


def timm_pictures(name: str, size: int = 224) -> Made:
    """Return a network of timm and its pictures."""
    torchvision_models()
    import timm
    import torch

    return timm.create_model(name, pretrained=False), {"pixels": torch.rand(1, 3, size, size) - 0.5}


def words(kind: str, tokens: int, **options: Any) -> Made:
    """Return a model of transformers that reads tokens, as a function of their ids alone."""
    torchvision_models()
    import torch
    import transformers

    config = getattr(transformers, f"{kind.split(':')[0]}Config")(**options)
    made = getattr(transformers, kind.replace(":", ""))(config)
    made.config.use_cache = False

    class Ids(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = made

        def forward(self, ids: Any) -> Any:
            return self.net(input_ids=ids)[0]

    return Ids(), {"ids": torch.randint(0, WORDS, (1, tokens))}


def audio(frames: int) -> Made:
    """Return Whisper's encoder (base) over the frames that its convolutions leave."""
    torchvision_models()
    import torch
    import transformers

    config = transformers.WhisperConfig(
        d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048, num_mel_bins=80
    )
    net = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)

    class Sound(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, sound: Any) -> Any:
            return self.net(sound)[0]

    return Sound(), {"sound": torch.rand(1, 80, 2 * frames) - 0.5}


def llama(tokens: int, past: int, layers: int = 2, width: int = 2048, heads: int = 32, groups: int = 8) -> Made:
    """Return layers of a Llama (grouped heads, rotated positions, gated products) with what it remembers as inputs.

    Without a past it is causal over `tokens`; with one, the tokens follow it.
    """
    import torch
    from torch import nn
    from torch.nn import functional as f

    size, hidden = width // heads, width * 11 // 4

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        left, right = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-right, left), dim=-1) * sin

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
            self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
            self.k, self.v = (nn.Linear(width, groups * size, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x: Any, keys: Any, values: Any, cos: Any, sin: Any) -> Any:
            y = self.first(x)
            q = rotated(self.q(y).view(1, tokens, heads, size).transpose(1, 2), cos, sin)
            k = rotated(self.k(y).view(1, tokens, groups, size).transpose(1, 2), cos, sin)
            v = self.v(y).view(1, tokens, groups, size).transpose(1, 2)
            k, v = (torch.cat((keys, k), 2), torch.cat((values, v), 2)) if past else (k, v)
            every_k, every_v = (t.repeat_interleave(heads // groups, dim=1) for t in (k, v))
            y = f.scaled_dot_product_attention(q, every_k, every_v, is_causal=not past)
            x = x + self.o(y.transpose(1, 2).reshape(1, tokens, width))
            y = self.second(x)
            return x + self.down(f.silu(self.gate(y)) * self.up(y)), k, v

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            angles = torch.arange(past, past + tokens)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
            self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
            self.register_buffer("sin", torch.cat((angles, angles), -1).sin())

        def forward(self, x: Any, *held: Any) -> Any:
            kept = []
            for n, layer in enumerate(self.layers):
                keys, values = held[2 * n : 2 * n + 2] if past else (None, None)
                x, k, v = layer(x, keys, values, self.cos, self.sin)
                kept += [k, v] if past else []
            return (x, *kept) if past else x

    inputs = {"x": torch.randn(1, tokens, width)}
    if past:
        names = [f"{kind}{n}" for n in range(layers) for kind in ("keys", "values")]
        inputs |= {name: torch.randn(1, groups, past, size) for name in names}
    return Net(), inputs


#: Name -> function that makes the module and its inputs.
MODELS: dict[str, Callable[[], Made]] = {
    "resnet18": lambda: pictures("resnet18"),
    "resnet50": lambda: pictures("resnet50"),
    "vgg19": lambda: pictures("vgg19"),
    "mobilenet_v2": lambda: pictures("mobilenet_v2"),
    "mobilenet_v3": lambda: pictures("mobilenet_v3_large"),
    "efficientnet_b0": lambda: pictures("efficientnet_b0"),
    "shufflenet": lambda: pictures("shufflenet_v2_x1_0"),
    "squeezenet": lambda: pictures("squeezenet1_1"),
    "densenet121": lambda: pictures("densenet121"),
    "inception": lambda: pictures("inception_v3", 299, init_weights=False, aux_logits=False),
    "regnet_y_400mf": lambda: pictures("regnet_y_400mf"),
    "convnext_tiny": lambda: pictures("convnext_tiny"),
    "vit_b_16": lambda: pictures("vit_b_16"),
    "swin_t": lambda: pictures("swin_t"),
    "deit_small": lambda: timm_pictures("deit_small_patch16_224"),
    "fcn_resnet50": lambda: segmented("fcn_resnet50", 224),
    "lraspp": lambda: segmented("lraspp_mobilenet_v3_large", 320),
    "bert_128": lambda: words("Bert:Model", 128, attn_implementation="sdpa"),
    "bert_384": lambda: words("Bert:Model", 384, attn_implementation="sdpa"),
    "distilbert": lambda: words("DistilBert:Model", 128, attn_implementation="sdpa"),
    "gpt2_128": lambda: words("GPT2:LMHeadModel", 128, attn_implementation="sdpa"),
    "llama_128": lambda: llama(128, 0),
    "llama_decode": lambda: llama(1, 512),
    "whisper_encoder": lambda: audio(1500),
    "resnet50_batch8": lambda: pictures("resnet50", batch=8),
    "mobilenet_v2_batch8": lambda: pictures("mobilenet_v2", batch=8),
}


def made(name: str) -> Made:
    """Return a model in evaluation mode and its inputs, the same ones in each process."""
    import torch

    torch.manual_seed(SEED)
    module, inputs = MODELS[name]()
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):  # as after training: neither dead nor without an effect
            torch.nn.init.normal_(part.running_mean, std=0.05)
            torch.nn.init.uniform_(part.running_var, 0.8, 1.2)
    for weights in module.parameters():
        if not weights.any():  # a bias, or a head that training starts at zero: its outputs would compare nothing
            torch.nn.init.normal_(weights, std=0.02)
    return module.eval(), inputs


def export(name: str, folder: Path) -> None:
    """Write NAME.onnx and NAME.npz (the inputs) to a folder."""
    import torch

    module, inputs = made(name)
    with torch.no_grad():
        program = torch.onnx.export(
            module, tuple(inputs.values()), dynamo=True, input_names=list(inputs), verbose=False, optimize=True
        )
    part = folder / f"part.{name}.onnx"
    program.save(str(part), external_data=False)
    keep_inputs({key: value.numpy() for key, value in inputs.items()}, folder / f"{name}.npz")
    part.replace(folder / f"{name}.onnx")


def open_inductor(file: Path, _inputs: Arrays, threads: int) -> Running:
    """Open the module that an ONNX file was written from, compiled by torch, its weights frozen."""

    def module() -> tuple[Any, list[Any]]:
        found, inputs = made(file.stem)
        return found, list(inputs.values())

    return opened_module(module, threads, compiled=True)


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
