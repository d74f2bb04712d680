"""A convolution stem: what an image model starts with."""

from __future__ import annotations

from torch import Tensor, nn


class ConvStem(nn.Module):
    """Two convolutions with batch normalisation, each halving the image, and a pooling that halves it once more."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)
