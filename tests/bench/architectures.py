"""What `make sweep` traces: architectures of transformers, timm and torchvision, made small.

Of transformers each model type once, by its class for language modeling or, of the vision models,
for classification, segmentation, detection or depth; of timm the smallest variant of each file; of
torchvision one of each file. Nothing is fetched: weights never matter here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

FAMILIES = ("text", "vision", "timm", "torchvision")

_TEXT = ("SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM")
_VISION = ("OBJECT_DETECTION", "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION", "IMAGE_CLASSIFICATION")
_LAYERS = "num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers"
_HEADS = "head_dim d_kv d_head"
_SMALL: tuple[tuple[int, str], ...] = (
    (64, "hidden_size d_model n_embd dim embed_dim embedding_size hidden_dim word_embed_proj_dim"),
    (4, "num_attention_heads n_head num_heads n_heads encoder_attention_heads"),
    (4, "decoder_attention_heads num_experts num_local_experts n_routed_experts"),
    (2, "num_key_value_heads n_head_kv num_kv_heads num_experts_per_tok"),
    (2, _LAYERS),
    (16, _HEADS),
    (128, "intermediate_size d_ff n_inner ffn_dim encoder_ffn_dim decoder_ffn_dim"),
    (1024, "vocab_size"),
)
#: Words in the names of small variants of timm, the smallest first.
_SIZES = (
    "test",
    "atto",
    "femto",
    "pico",
    "nano",
    "xxt",
    "xxs",
    "tiny",
    "xs",
    "xt",
    "lite",
    "small",
)
_TORCHVISION = (
    *("alexnet:alexnet", "convnext:convnext_tiny", "densenet:densenet121", "googlenet:googlenet"),
    *("efficientnet:efficientnet_b0", "inception:inception_v3", "maxvit:maxvit_t"),
    *("mnasnet:mnasnet0_5", "mobilenetv2:mobilenet_v2", "mobilenetv3:mobilenet_v3_small"),
    *("regnet:regnet_y_400mf", "resnet:resnet18", "shufflenetv2:shufflenet_v2_x0_5"),
    *("squeezenet:squeezenet1_1", "swin_transformer:swin_t", "vgg:vgg11_bn"),
    *("vision_transformer:vit_b_32", "segmentation.fcn:fcn_resnet50"),
    *("segmentation.lraspp:lraspp_mobilenet_v3_large", "video.resnet:r3d_18"),
)


@dataclass(frozen=True)
class Architecture:
    """A class or a function that makes a module, as `tensorpoint shapes --object` takes it."""

    family: str
    name: str
    object: str
    #: What it is made from, the first that does: fields of its configuration, or arguments.
    kind: str = ""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)

    def configurations(self) -> Iterator[dict[str, Any]]:
        """Small ones first, then as it comes.

        Heads have a size of their own in the attention of DeepSeek, and two layers may be of one
        kind where the model needs both.
        """
        if self.kind:
            with contextlib.suppress(Exception):  # a configuration that wants arguments
                small = tiny(self.kind)
                yield small
                for left in (_HEADS, _LAYERS):
                    if without(small, left) != small:
                        yield without(small, left)
                yield {name: small[name] for name in _LAYERS.split() if name in small}
        yield self.arguments


def known(family: str) -> dict[str, Architecture]:
    """The architectures of a family, by name. Raises ImportError where it isn't installed."""
    if family in ("text", "vision"):
        return _of_transformers(family)
    with_torchvision()
    return _of_timm() if family == "timm" else _of_torchvision()


def _of_transformers(family: str) -> dict[str, Architecture]:
    from transformers.models.auto import modeling_auto

    found: dict[str, Architecture] = {}
    for table in _TEXT if family == "text" else _VISION:
        names = getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES")
        for kind, classes in names.items():
            name = classes if isinstance(classes, str) else classes[0]
            found[kind] = Architecture(family, kind, f"transformers:{name}", kind)
    return found


def tiny(kind: str) -> dict[str, Any]:
    """What makes a configuration of transformers small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return _shrunk(CONFIG_MAPPING[kind]())


def without(fields: dict[str, Any], names: str) -> dict[str, Any]:
    """The same with these as they come, in its parts too."""
    return {
        name: without(value, names) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name not in names.split()
    }


def _shrunk(config: Any) -> dict[str, Any]:
    own = getattr(type(config), "attribute_map", {})
    fields: dict[str, Any] = {}
    for value, names in _SMALL:
        for name in names.split():
            if name not in own and type(getattr(config, name, None)) is int:
                fields[name] = value
    for name in ("pad", "bos", "eos", "decoder_start", "cls", "sep", "unk", "mask"):
        token = getattr(config, f"{name}_token_id", None)
        if "vocab_size" in fields and isinstance(token, int) and token >= fields["vocab_size"]:
            fields[f"{name}_token_id"] = 1
    for name in getattr(type(config), "sub_configs", {}):
        part: Any = getattr(config, name, None)
        if hasattr(part, "to_dict"):
            fields[name] = {"model_type": part.model_type, **_shrunk(part)}
    return fields


def _of_timm() -> dict[str, Architecture]:
    timm: Any = importlib.import_module("timm")

    found: dict[str, Architecture] = {}
    for module in sorted({timm.models.model_entrypoint(n).__module__ for n in timm.list_models()}):
        file = module.rpartition(".")[2]
        names = sorted(timm.list_models(module=file), key=lambda name: (_size(name), len(name)))
        if names:
            found[file] = Architecture("timm", file, f"{module}:{names[0]}")
    return found


def _size(name: str) -> int:
    return next((index for index, word in enumerate(_SIZES) if word in name), len(_SIZES))


def _of_torchvision() -> dict[str, Architecture]:
    found: dict[str, Architecture] = {}
    for each in _TORCHVISION:
        name = each.partition(":")[2]
        arguments: dict[str, Any] = {}
        if each.startswith("segmentation."):
            arguments = {"weights_backbone": None}
        elif name in ("googlenet", "inception_v3"):
            arguments = {"init_weights": False}
        found[name] = Architecture(
            "torchvision", name, f"torchvision.models.{each}", arguments=arguments
        )
    return found


def with_torchvision() -> None:
    """Import torchvision, without its own operators where they are built for another torch.

    None of these models needs one, but it doesn't import without.
    """
    if importlib.util.find_spec("torchvision") is None:
        raise ImportError("torchvision is not installed")
    import torch

    _LIBRARIES.append(torch.library.Library("torchvision", "FRAGMENT"))
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            _LIBRARIES[-1].define(
                f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        importlib.import_module("torchvision")


#: Operators are gone with what defined them.
_LIBRARIES: list[Any] = []
