"""Families of models of torchvision, timm and transformers, built from their configs with random weights.

Nothing is downloaded. Some are smaller than their published sizes, where the structure stays: `Family.size` says how.
"""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SEED = 0
#: Size of images, in pixels.
PIXELS = 224


@dataclass(frozen=True)
class Family:
    """A family of models.

    Parameters
    ----------
    name, library : str
    model : function
        Returns the module.
    inputs : mapping of str to (shape, range)
        Keyword of the module's forward -> its shape, and the integers' upper bound or None for numbers. The module of
        torchvision or timm takes one image, by position.
    size : str
        What is smaller than in the published model.
    """

    name: str
    library: str
    model: Callable[[], Any]
    inputs: Mapping[str, tuple[tuple[int, ...], int | None]] = field(default_factory=dict)
    size: str = ""

    def make(self) -> tuple[Any, list[tuple[Any, ...]]]:
        """Return the module in evaluation mode, of tensors only, and two samples of its arguments."""
        import torch

        torch.manual_seed(SEED)
        keywords = self.inputs or {"": ((1, 3, PIXELS, PIXELS), None)}
        module = tensors_only(perturbed(self.model().eval()), tuple(keywords))
        samples = [tuple(_tensor(*one) for one in keywords.values()) for _ in range(4)]
        return with_statistics(module, samples), samples[:2]


def _tensor(shape: tuple[int, ...], bound: int | None) -> Any:
    """Return integers, noise, or an image of a few blurred spots: of two images of noise alone the means are alike."""
    import torch

    if bound is not None:
        return torch.randint(0, bound, shape)
    noise = torch.randn(shape)
    if len(shape) < 4 or shape[1] != 3:
        return noise
    spots = torch.nn.functional.interpolate(torch.randn(*shape[:2], 6, 6), size=shape[2:], mode="bilinear")
    return 2 * spots + 0.3 * noise + torch.randn(shape[1])[:, None, None]


def with_statistics(module: Any, samples: list[tuple[Any, ...]]) -> Any:
    """Give BatchNorms the statistics of samples, without which what a random network answers forgets its input."""
    import torch

    norms = [part for part in module.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]
    if norms:
        for norm in norms:
            norm.training, norm.momentum = True, 1.0
        with torch.no_grad():
            module(*(torch.cat(parts) for parts in zip(*samples, strict=True)))
        for norm in norms:
            norm.training = False
    return module


def perturbed(module: Any) -> Any:
    """Change parameters whose elements are all alike, so that no branch is multiplied by zero.

    Libraries start a residual branch's last scale at zero: whatever a wrong kernel computes there would be hidden.
    """
    import torch

    with torch.no_grad():
        for value in module.parameters():
            if value.numel() > 1 and bool((value == value.flatten()[0]).all()):
                value.add_((0.1 if value.flatten()[0] else 0.02) * torch.randn_like(value))
    return module


def tensors_only(module: Any, keywords: tuple[str, ...]) -> Any:
    """Return a module that takes tensors by position and returns a tensor or a tuple of them."""
    import torch

    class Tensors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *args: Any) -> Any:
            given = dict(zip(keywords, args, strict=True)) if keywords != ("",) else {}
            result = self.inner(**given) if given else self.inner(*args)
            found = list(_tensors(result))
            return found[0] if len(found) == 1 else tuple(found)

    return Tensors().eval()


def _tensors(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


def _vision(name: str, **options: Any) -> Callable[[], Any]:
    def model() -> Any:
        return operator.attrgetter(name)(torchvision_models())(**options)

    return model


def torchvision_models() -> Any:
    """Import torchvision's models, also from a wheel whose own operators do not fit this build of torch."""
    import torch

    try:
        import torchvision.models as models
    except RuntimeError:  # "operator torchvision::nms does not exist"
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        import torchvision.models as models
    return models


def _timm(name: str, **options: Any) -> Callable[[], Any]:
    def model() -> Any:
        torchvision_models()
        import timm

        return timm.create_model(name, pretrained=False, **options)

    return model


def _hugging(model: str, config: str, **options: Any) -> Callable[[], Any]:
    def made() -> Any:
        if importlib.util.find_spec("torchvision"):
            torchvision_models()
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**options))

    return made


def _nested(model: str, config: str, text: Mapping[str, Any], vision: Mapping[str, Any]) -> Callable[[], Any]:
    def made() -> Any:
        if importlib.util.find_spec("torchvision"):
            torchvision_models()
        import transformers

        return getattr(transformers, model)(
            getattr(transformers, config)(text_config=dict(text), vision_config=dict(vision))
        )

    return made


def _step(model: str, config: str, **options: Any) -> Callable[[], Any]:
    """Return the maker of a decoder's step: a token, keys and values of two layers -> scores, keys and values."""

    def made() -> Any:
        import torch

        inner = _hugging(model, config, **options)()
        from transformers import DynamicCache

        class Step(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, input_ids: Any, k0: Any, v0: Any, k1: Any, v1: Any) -> Any:
                cache = DynamicCache(config=inner.config)
                for layer, (keys, values) in enumerate(((k0, v0), (k1, v1))):
                    cache.update(keys, values, layer)
                result = inner(input_ids=input_ids, past_key_values=cache, use_cache=True)
                return result.logits, [(layer.keys, layer.values) for layer in cache.layers]

        return Step()

    return made


VOCABULARY, TOKENS = 1000, 64
_WIDE = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 1024,
         "vocab_size": VOCABULARY}  # fmt: skip
_DECODER = {**_WIDE, "num_key_value_heads": 2, "use_cache": False, "max_position_embeddings": 256}
_IDS: Mapping[str, tuple[tuple[int, ...], int | None]] = {"input_ids": ((1, TOKENS), VOCABULARY)}
_BOTH = {**_IDS, "decoder_input_ids": ((1, 16), VOCABULARY)}
_IMAGE: Mapping[str, tuple[tuple[int, ...], int | None]] = {"pixel_values": ((1, 3, PIXELS, PIXELS), None)}


def _past(heads: int) -> Mapping[str, tuple[tuple[int, ...], int | None]]:
    """Return the inputs of a decoder's step."""
    return {"input_ids": ((1, 1), VOCABULARY)} | {n: ((1, heads, TOKENS, 64), None) for n in ("k0", "v0", "k1", "v1")}


_SMALL = "2 layers, 256 wide"
TORCHVISION, TIMM, TRANSFORMERS = "torchvision", "timm", "transformers"

FAMILIES: tuple[Family, ...] = (
    Family("AlexNet", TORCHVISION, _vision("alexnet", weights=None)),
    Family("VGG", TORCHVISION, _vision("vgg11_bn", weights=None), size="vgg11_bn"),
    Family("ResNet", TORCHVISION, _vision("resnet18", weights=None), size="resnet18"),
    Family("DenseNet", TORCHVISION, _vision("DenseNet", block_config=(2, 2, 2, 2)), size="2 layers a block"),
    Family("GoogLeNet", TORCHVISION, _vision("googlenet", weights=None, init_weights=False, aux_logits=False)),
    Family("Inception v3", TORCHVISION, _vision("inception_v3", weights=None, init_weights=False),
           {"": ((1, 3, 299, 299), None)}),
    Family("SqueezeNet", TORCHVISION, _vision("squeezenet1_1", weights=None), size="squeezenet1_1"),
    Family("MobileNet v2", TORCHVISION, _vision("mobilenet_v2", weights=None)),
    Family("MobileNet v3", TORCHVISION, _vision("mobilenet_v3_small", weights=None), size="small"),
    Family("ShuffleNet v2", TORCHVISION, _vision("shufflenet_v2_x1_0", weights=None)),
    Family("EfficientNet", TORCHVISION, _vision("efficientnet_b0", weights=None), size="b0"),
    Family("RegNet", TORCHVISION, _vision("regnet_y_400mf", weights=None), size="y_400mf"),
    Family("ConvNeXt", TORCHVISION, _vision("convnext_tiny", weights=None), size="tiny"),
    Family("ViT", TORCHVISION, _timm("vit_tiny_patch16_224"), size="tiny, timm's"),
    Family("Swin v2", TORCHVISION, _vision("swin_v2_t", weights=None), {"": ((1, 3, 256, 256), None)}, size="tiny"),
    Family("MaxViT", TORCHVISION, _vision("maxvit_t", weights=None), size="tiny"),
    Family("DeepLab v3", TORCHVISION, _vision("segmentation.deeplabv3_mobilenet_v3_large", weights_backbone=None)),
    Family("MLP-Mixer", TIMM, _timm("mixer_s32_224")),
    Family("ConvMixer", TIMM, _timm("convmixer_768_32"), size="768/32"),
    Family("BEiT", TIMM, _timm("beit_base_patch16_224", depth=2, embed_dim=192, num_heads=3),
           size="2 layers, 192 wide"),
    Family("CaiT", TIMM, _timm("cait_xxs24_224", depth=2), size="2 of 24 layers"),
    Family("CoAtNet", TIMM, _timm("coatnet_0_rw_224"), size="0"),
    Family("EdgeNeXt", TIMM, _timm("edgenext_xx_small"), size="xx-small"),
    Family("GhostNet", TIMM, _timm("ghostnet_100")),
    Family("HRNet", TIMM, _timm("hrnet_w18_small"), size="w18-small"),
    Family("LeViT", TIMM, _timm("levit_128s"), size="128s"),
    Family("MobileViT", TIMM, _timm("mobilevit_xxs"), {"": ((1, 3, 256, 256), None)}, size="xx-small"),
    Family("NFNet", TIMM, _timm("nf_regnet_b0"), size="nf_regnet_b0"),
    Family("PVT v2", TIMM, _timm("pvt_v2_b0"), size="b0"),
    Family("RepVGG", TIMM, _timm("repvgg_a0"), size="a0"),
    Family("Res2Net", TIMM, _timm("res2net50_26w_4s", block_args={}), size="50"),
    Family("XCiT", TIMM, _timm("xcit_nano_12_p16_224", depth=2), size="2 of 12 layers"),
    Family("PoolFormer", TIMM, _timm("poolformer_s12"), size="s12"),
    Family("BERT", TRANSFORMERS, _hugging("BertModel", "BertConfig", **_WIDE), _IDS, _SMALL),
    Family("ALBERT", TRANSFORMERS, _hugging("AlbertModel", "AlbertConfig", embedding_size=64, **_WIDE), _IDS, _SMALL),
    Family("DeBERTa v2", TRANSFORMERS, _hugging("DebertaV2Model", "DebertaV2Config", relative_attention=True,
           pos_att_type=["p2c", "c2p"], **_WIDE), _IDS, _SMALL),
    Family("GPT-2", TRANSFORMERS, _hugging("GPT2LMHeadModel", "GPT2Config", n_embd=256, n_layer=2, n_head=4,
           vocab_size=VOCABULARY, use_cache=False), _IDS, _SMALL),
    Family("GPT-2 step", TRANSFORMERS, _step("GPT2LMHeadModel", "GPT2Config", n_embd=256, n_layer=2, n_head=4,
           vocab_size=VOCABULARY), _past(4), f"{_SMALL}, {TOKENS} cached tokens"),
    Family("Llama step", TRANSFORMERS, _step("LlamaForCausalLM", "LlamaConfig", **{**_DECODER, "use_cache": True}),
           _past(2), f"{_SMALL}, {TOKENS} cached tokens"),
    Family("BLOOM", TRANSFORMERS, _hugging("BloomForCausalLM", "BloomConfig", hidden_size=256, n_layer=2, n_head=4,
           vocab_size=VOCABULARY, use_cache=False), _IDS, _SMALL),
    Family("Llama", TRANSFORMERS, _hugging("LlamaForCausalLM", "LlamaConfig", **_DECODER), _IDS, _SMALL),
    Family("Qwen2", TRANSFORMERS, _hugging("Qwen2ForCausalLM", "Qwen2Config", **_DECODER), _IDS, _SMALL),
    Family("Gemma 2", TRANSFORMERS, _hugging("Gemma2ForCausalLM", "Gemma2Config", head_dim=64, sliding_window=32,
           **_DECODER), _IDS, _SMALL),
    Family("Phi", TRANSFORMERS, _hugging("PhiForCausalLM", "PhiConfig", **_DECODER), _IDS, _SMALL),
    Family("Mixtral", TRANSFORMERS, _hugging("MixtralForCausalLM", "MixtralConfig", num_local_experts=4,
           **_DECODER), _IDS, f"{_SMALL}, 4 experts"),
    Family("Mamba", TRANSFORMERS, _hugging("MambaForCausalLM", "MambaConfig", hidden_size=256, num_hidden_layers=2,
           vocab_size=VOCABULARY, use_cache=False), {"input_ids": ((1, 16), VOCABULARY)}, f"{_SMALL}, 16 tokens"),
    Family("T5", TRANSFORMERS, _hugging("T5ForConditionalGeneration", "T5Config", d_model=256, d_kv=64, d_ff=1024,
           num_layers=2, num_heads=4, vocab_size=VOCABULARY, use_cache=False), _BOTH, _SMALL),
    Family("BART", TRANSFORMERS, _hugging("BartForConditionalGeneration", "BartConfig", d_model=256, encoder_layers=2,
           decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=1024,
           decoder_ffn_dim=1024, vocab_size=VOCABULARY, use_cache=False), _BOTH, _SMALL),
    Family("Whisper", TRANSFORMERS, _hugging("WhisperForConditionalGeneration", "WhisperConfig", d_model=256,
           encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
           encoder_ffn_dim=1024, decoder_ffn_dim=1024, vocab_size=VOCABULARY, use_cache=False, pad_token_id=0,
           bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, max_source_positions=250),
           {"input_features": ((1, 80, 500), None), "decoder_input_ids": ((1, 16), VOCABULARY)},
           f"{_SMALL}, 500 frames"),
    Family("Wav2Vec2", TRANSFORMERS, _hugging("Wav2Vec2Model", "Wav2Vec2Config", conv_dim=(128,) * 7,
           num_conv_pos_embeddings=32, **_WIDE), {"input_values": ((1, 8000), None)}, f"{_SMALL}, half a second"),
    Family("CLIP", TRANSFORMERS, _nested("CLIPModel", "CLIPConfig", {**_WIDE, "eos_token_id": 2},
           {**_WIDE, "image_size": PIXELS}), {**_IDS, **_IMAGE}, _SMALL),
    Family("SegFormer", TRANSFORMERS, _hugging("SegformerForSemanticSegmentation", "SegformerConfig"), _IMAGE, "b0"),
)  # fmt: skip


def find(names: list[str] | None) -> list[Family]:
    """Return the families of these names, or all of them.

    Raises
    ------
    UsageError
        A name is unknown.

    Examples
    --------
    >>> [family.library for family in find(["ResNet", "Llama"])]
    ['torchvision', 'transformers']
    """
    from roller_tvm.errors import UsageError

    known = {family.name: family for family in FAMILIES}
    if unknown := [name for name in names or () if name not in known]:
        raise UsageError(f"there is no family '{unknown[0]}'", "families", f"known: {', '.join(known)}")
    return [known[name] for name in names] if names else list(FAMILIES)
