"""Image models that run. Shapes: B batch, C channels, S side, K classes; images [B, C, S, S] -> logits [B, K]."""

from __future__ import annotations

from torch import nn

from orch.models.vision import EXPANSION, ResNetKnobs


def resnet(knobs: ResNetKnobs) -> nn.Module:
    """Return transformers' bottleneck ResNet; its output has `logits`."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        num_channels=knobs.channels,
        embedding_size=knobs.width,
        hidden_sizes=[knobs.width * EXPANSION * 2**stage for stage in range(len(knobs.depths))],
        depths=list(knobs.depths),
        layer_type="bottleneck",
        num_labels=knobs.num_classes,
    )
    model: nn.Module = ResNetForImageClassification(config)
    return model
