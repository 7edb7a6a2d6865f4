"""Two image classifiers in plain torch: ResNet-50 and one with Inception-v3's blocks. Knows nothing of training."""
import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 1000


class Conv(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, inputs, outputs, kernel, stride=1, padding=0, relu=True):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.relu = relu

    def forward(self, images):
        images = self.norm(self.conv(images))
        return F.relu(images, inplace=True) if self.relu else images


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.path = nn.Sequential(
            Conv(inputs, width, 1), Conv(width, width, 3, stride, 1), Conv(width, outputs, 1, relu=False)
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else Conv(inputs, outputs, 1, stride, relu=False)

    def forward(self, images):
        return F.relu(self.path(images) + self.shortcut(images), inplace=True)


class Classifier(nn.Module):
    """Features, mean over the image, one linear layer."""

    def __init__(self, features, width):
        super().__init__()
        self.features = features
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images):
        return self.head(self.features(images).mean(dim=(2, 3)))


def resnet50():
    layers = [Conv(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return Classifier(nn.Sequential(*layers), inputs)


class Branches(nn.Module):
    """Paths side by side, joined by channels."""

    def __init__(self, *paths):
        super().__init__()
        self.paths = nn.ModuleList(paths)

    def forward(self, images):
        return torch.cat([path(images) for path in self.paths], dim=1)


def chain(inputs, *layers):
    """Convolutions one after the other; each is (outputs, kernel) and keeps the size of the image."""
    parts = []
    for outputs, kernel in layers:
        sizes = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        parts.append(Conv(inputs, outputs, kernel, padding=tuple(size // 2 for size in sizes)))
        inputs = outputs
    return nn.Sequential(*parts)


def pooled(inputs, outputs):
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), Conv(inputs, outputs, 1))


def mixed_35(inputs, pool):
    return Branches(
        chain(inputs, (64, 1)), chain(inputs, (48, 1), (64, 5)), chain(inputs, (64, 1), (96, 3), (96, 3)),
        pooled(inputs, pool),
    )


def mixed_17(inputs, width):
    """7×7 as 1×7 and 7×1."""
    row, column = (1, 7), (7, 1)
    return Branches(
        chain(inputs, (192, 1)), chain(inputs, (width, 1), (width, row), (192, column)),
        chain(inputs, (width, 1), (width, column), (width, row), (width, column), (192, row)), pooled(inputs, 192),
    )


class Split(nn.Module):
    """1×3 and 3×1 of the same images."""

    def __init__(self, before, inputs):
        super().__init__()
        self.before = before
        self.sides = Branches(chain(inputs, (384, (1, 3))), chain(inputs, (384, (3, 1))))

    def forward(self, images):
        return self.sides(self.before(images))


def mixed_8(inputs):
    return Branches(
        chain(inputs, (320, 1)), Split(chain(inputs, (384, 1)), 384), Split(chain(inputs, (448, 1), (384, 3)), 384),
        pooled(inputs, 192),
    )


def smaller_35():
    return Branches(
        Conv(288, 384, 3, 2), nn.Sequential(chain(288, (64, 1), (96, 3)), Conv(96, 96, 3, 2)), nn.MaxPool2d(3, 2)
    )


def smaller_17():
    return Branches(
        nn.Sequential(Conv(768, 192, 1), Conv(192, 320, 3, 2)),
        nn.Sequential(chain(768, (192, 1), (192, (1, 7)), (192, (7, 1))), Conv(192, 192, 3, 2)), nn.MaxPool2d(3, 2),
    )


def inception():
    """Inception-v3 without its second classifier. Images from 75×75 on."""
    features = nn.Sequential(
        Conv(3, 32, 3, 2), Conv(32, 32, 3), Conv(32, 64, 3, padding=1), nn.MaxPool2d(3, 2), Conv(64, 80, 1),
        Conv(80, 192, 3), nn.MaxPool2d(3, 2), mixed_35(192, 32), mixed_35(256, 64), mixed_35(288, 64), smaller_35(),
        mixed_17(768, 128), mixed_17(768, 160), mixed_17(768, 160), mixed_17(768, 192), smaller_17(), mixed_8(1280),
        mixed_8(2048),
    )
    return Classifier(features, 2048)
