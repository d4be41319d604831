"""What comes from libraries in a file: einops, models of transformers and of torchvision."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.wire.shapes import ShapeRequest, ShapeTable
from tests.bench.architectures import with_torchvision
from tests.conftest import Write


def trace(path: Path) -> ShapeTable:
    table = table_of(ShapeRequest(str(path), path.read_text("utf-8")))
    assert not table.diagnostics and not table.untraced, table
    return table


def shown(table: ShapeTable) -> dict[str, str]:
    return {hint.name: hint.text for hint in table.hints if hint.kind == "target"}


def test_einops_functions_and_layers(write: Write) -> None:
    path = write(
        """
        import torch
        from einops import einsum, pack, rearrange, reduce, repeat
        from einops.layers.torch import Rearrange, Reduce
        from torch import nn

        class Patches(nn.Module):
            def __init__(self, width=48):
                super().__init__()
                self.cut = Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=16, q=16)
                self.embed = nn.Linear(768, width)
                self.token = nn.Parameter(torch.zeros(width))
                self.mean = Reduce("b n d -> b d", "mean")

            # tensorpoint: images: f32[B, 3, H, 32]
            def forward(self, images):
                patches = self.cut(images)
                tokens = self.embed(patches)
                first = repeat(self.token, "d -> b 1 d", b=images.shape[0])
                tokens = torch.cat([first, tokens], 1)
                heads = rearrange(tokens, "b n (h d) -> b h n d", h=4)
                scores = einsum(heads, heads, "b h n d, b h m d -> b h n m")
                largest = reduce(scores, "b h n m -> b h n", "max")
                pooled = self.mean(tokens)
                return pooled, largest

        images = torch.randn(2, 3, 64, 32)
        rows = rearrange(images, "b c h w -> b (h w) c")
        pooled, largest = Patches()(images)
        both, _ = pack([pooled, pooled], "b *")
        """
    )
    found = shown(trace(path))
    assert found["patches"] == "f32[B, H/8, 768]"
    assert found["first"] == "f32[B, 1, 48]"
    assert found["heads"] == "f32[B, 4, H/8 + 1, 12]"
    assert found["largest"] == "f32[2, 4, 9]"
    assert found["rows"] == "f32[2, 2048, 3]" and found["both"] == "f32[2, 96]"
    assert found["scores"] == "f32[B, 4, H/8 + 1, H/8 + 1]"


def test_a_model_of_a_configuration(write: Write) -> None:
    path = write(
        """
        import torch
        from torch import nn
        from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

        config = AutoConfig.for_model(
            "bert", vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, num_labels=5,
        )

        class Classifier(nn.Module):
            def __init__(self, config):
                super().__init__()
                self.encoder = AutoModel.from_config(config)
                self.head = nn.Linear(config.hidden_size, 3)

            def forward(self, input_ids, attention_mask=None):
                hidden = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
                scores = self.head(hidden[:, 0])
                return scores

        model = Classifier(config)
        plain = AutoModelForSequenceClassification.from_config(config)
        ids = torch.randint(0, 50, (4, 9))
        mask = torch.ones_like(ids)
        mine = model(ids, mask)
        out = plain(input_ids=ids, attention_mask=mask, labels=torch.zeros(4, dtype=torch.long))
        logits, loss = out.logits, out.loss
        """
    )
    table = trace(path)
    found = shown(table)
    assert [call.qualname for call in table.calls] == ["Classifier"]
    assert found["hidden"] == "f32[B, T, 32]" and found["scores"] == "f32[B, 3]"
    assert found["mine"] == "f32[4, 3]"
    assert found["logits"] == "f32[4, 5]" and found["loss"] == "f32[]"


def test_models_of_torchvision(write: Write) -> None:
    try:
        with_torchvision()
    except ImportError as error:
        pytest.skip(str(error))
    path = write(
        """
        import torch
        import torchvision
        from torch import nn
        from torchvision.models import resnet18, vit_b_16

        class Tuned(nn.Module):
            def __init__(self, classes=7):
                super().__init__()
                self.body = resnet18()
                self.body.fc = nn.Identity()
                self.head = nn.Linear(512, classes)

            def forward(self, x):
                features = self.body(x)
                return self.head(features)

        model = torchvision.models.mobilenet_v3_small(num_classes=4)
        x = torch.randn(2, 3, 96, 96)
        scores = model(x)
        model = resnet18()
        model.fc = nn.Linear(model.fc.in_features, 6)
        replaced = model(x)
        tuned = Tuned()(x)
        seen = vit_b_16()(torch.randn(1, 3, 224, 224))
        """
    )
    table = trace(path)
    found = shown(table)
    assert found["features"] == "f32[B, 512]" and found["scores"] == "f32[2, 4]"
    assert found["replaced"] == "f32[2, 6]" and found["tuned"] == "f32[2, 7]"
    assert found["seen"] == "f32[1, 1000]"
