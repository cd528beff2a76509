"""Networks of the built-in tasks beyond the paper's two, of the sizes that are common in papers on federated learning.

They have no buffers, batch normalization or dropout, so a vector of parameters is a whole model. All of them work under
`torch.func.vmap` with separate parameters per client, and in CUDA graphs.
"""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from lesson.learn.models import conv_pool_relu


class LogisticRegression(nn.Module):
    """Multinomial logistic regression on vectors of features, num_classes · (num_features + 1) parameters.

    Li et al. (FedProx, MLSys 2020) train it on synthetic data of 60 features and 10 classes: 610 parameters. All start
    at 0, so that the initial loss is ln(num_classes) whatever the seed; the problem is convex.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(num_features, num_classes)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, num_classes), of features, shape (num_samples, num_features)."""
        logits: Tensor = self.out(features)
        return logits


class FemnistNet(nn.Module):
    """LEAF's network for 28 × 28 gray images of 62 characters, 6,603,710 parameters (Caldas et al. 2018).

    Two 5 × 5 convolutions of 32 and 64 channels, each followed by 2 × 2 pooling, and a hidden layer of 2048 units.
    Weights are initialized as TensorFlow does, and hence LEAF: Glorot-uniform, with zero biases.
    """

    def __init__(self, num_classes: int = 62) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.full = nn.Linear(64 * 7 * 7, 2048)
        self.out = nn.Linear(2048, num_classes)
        for parameter in self.parameters():
            nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, num_classes), of images, shape (num_samples, 1, 28, 28)."""
        hidden = conv_pool_relu(self.conv2, conv_pool_relu(self.conv1, images)).flatten(1)
        logits: Tensor = self.out(functional.relu(self.full(hidden)))
        return logits


class GroupNormResNet(nn.Module):
    """The residual network of He et al. (2016) for 32 × 32 color images, with group instead of batch normalization.

    One block in each of the three stages makes ResNet-8 (78,042 parameters for 10 classes, 83,892 for 100), three make
    ResNet-20 (272,474 and 278,324). Batch normalization loses accuracy if the classes of clients differ, which group
    normalization (Wu & He 2018) does not (Hsieh et al. 2020); channels form two groups, as in Reddi et al. (2021).
    Where the number of channels doubles, the shortcut is a 1 × 1 convolution.
    """

    def __init__(
        self, num_classes: int = 10, in_channels: int = 3, width: int = 16, blocks: int = 1, num_groups: int = 2
    ) -> None:
        super().__init__()
        self.conv = _conv3x3(in_channels, width)
        self.norm = nn.GroupNorm(num_groups, width)
        widths = [width, *(width << stage for stage in range(3) for _ in range(blocks))]
        self.blocks = nn.Sequential(*[_ResidualBlock(before, after, num_groups) for before, after in pairwise(widths)])
        self.out = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, num_classes), of images, shape (num_samples, in_channels, 32, 32)."""
        hidden = self.blocks(functional.relu(self.norm(self.conv(images))))
        logits: Tensor = self.out(hidden.mean((2, 3)))
        return logits


class _ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut; the first one halves the image if the number of channels grows."""

    def __init__(self, before: int, after: int, num_groups: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.conv1, self.norm1 = _conv3x3(before, after, stride), nn.GroupNorm(num_groups, after)
        self.conv2, self.norm2 = _conv3x3(after, after), nn.GroupNorm(num_groups, after)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            projection = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(num_groups, after))

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.conv1(images)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


def _conv3x3(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
