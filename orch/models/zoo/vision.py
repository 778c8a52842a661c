"""Convolutional models that run: residual nets from transformers' configuration.

Shapes: B batch, C channels, S image side, K classes. Images [B, C, S, S] -> an output whose `logits` are [B, K].
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def resnet(*, depths: Sequence[int], num_classes: int, channels: int, width: int = 64) -> nn.Module:
    """Return transformers' bottleneck ResNet; `depths` blocks a stage, the first stage `4 * width` channels wide."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        num_channels=channels,
        embedding_size=width,
        hidden_sizes=[width * 4 * 2**stage for stage in range(len(depths))],
        depths=list(depths),
        layer_type="bottleneck",
        num_labels=num_classes,
    )
    model: nn.Module = ResNetForImageClassification(config)
    return model
