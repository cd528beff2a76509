"""Networks of the built-in tasks other than the paper's two, in sizes that are common in papers on federated learning.

They have no buffers, batch normalization or dropout, so a vector of parameters is a complete model. All of them work
under `torch.func.vmap`, with separate parameters for each client, and in CUDA graphs.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lesson.learn.models import conv_pool_relu, init_glorot


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
    Weights are initialized as in TensorFlow, and hence in LEAF: Glorot-uniform, with zero biases.
    """

    def __init__(self, num_classes: int = 62) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.full = nn.Linear(64 * 7 * 7, 2048)
        self.out = nn.Linear(2048, num_classes)
        init_glorot(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (num_samples, num_classes), of images, shape (num_samples, 1, 28, 28)."""
        hidden = conv_pool_relu(self.conv2, conv_pool_relu(self.conv1, images)).flatten(1)
        logits: Tensor = self.out(functional.relu(self.full(hidden)))
        return logits


class GroupNormResNet(nn.Module):
    """The residual network of He et al. (2016) for 32 × 32 color images, with group instead of batch normalization.

    With one block in each of the three stages, it is ResNet-8 (78,042 parameters for 10 classes, 83,892 for 100); with
    three, ResNet-20 (272,474 and 278,324). If clients hold different classes, batch normalization loses accuracy, but
    group normalization (Wu & He 2018) does not (Hsieh et al. 2020). Channels form two groups, as in Reddi et al.
    (2021). Where the number of channels doubles, the shortcut is a 1 × 1 convolution.
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


class CharLstm(nn.Module):
    """LEAF's model of the next character (Caldas et al. 2018): an embedding of size 8, two LSTM layers of 256 units.

    It has 819,920 parameters for LEAF's alphabet of 80 characters: 2,048 more than LEAF's, because torch's LSTM has two
    vectors of biases. As in LEAF, the forget gates start with a bias of 1 and all others with 0. LEAF predicts only the
    character that follows a whole sequence; here, every position predicts the next one, as in Reddi et al. (2021).
    """

    def __init__(self, num_tokens: int, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, embedding)
        self.lstm = Lstm(embedding, hidden, layers)
        self.out = nn.Linear(hidden, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, shape (num_samples, num_tokens, length), of integer tokens, shape (num_samples, length)."""
        logits: Tensor = self.out(self.lstm(self.embedding(tokens)))
        return logits.transpose(1, 2)


class Lstm(nn.Module):
    """An equivalent of `nn.LSTM(…, batch_first=True)`, with the same parameters, that also works under vmap.

    torch's own LSTM has no batching rule, so vmap at best loops over the models. It is used for a single model on a
    CPU, where it takes about two thirds of the time. On a GPU it would copy all parameters in every call, since they
    are not adjacent in cuDNN's order. The loop here is about as fast as cuDNN in a CUDA graph, but takes four times as
    long without a graph.
    """

    def __init__(self, num_inputs: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self._hidden, self._layers, bound = hidden, layers, hidden**-0.5
        for layer in range(layers):
            inputs = hidden if layer else num_inputs
            forget = torch.arange(4 * hidden) // hidden == 1
            values = {
                "weight_ih": torch.empty(4 * hidden, inputs).uniform_(-bound, bound),
                "weight_hh": torch.empty(4 * hidden, hidden).uniform_(-bound, bound),
                "bias_ih": forget.to(torch.get_default_dtype()),
                "bias_hh": torch.zeros(4 * hidden),
            }
            for name, value in values.items():
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(value))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the last layer's outputs, shape (num_samples, length, hidden)."""
        named = self.named_parameters(recurse=False, remove_duplicate=False)
        parameters: list[Tensor] = [parameter for _, parameter in named]
        if inputs.device.type == "cpu" and torch._C._functorch.maybe_current_level() is None:
            zeros = inputs.new_zeros(self._layers, len(inputs), self._hidden)
            options = (True, self._layers, 0.0, torch.is_grad_enabled(), False, True)  # with biases, …, batch first
            outputs: Tensor = torch._VF.lstm(inputs, (zeros, zeros), parameters, *options)[0]
            return outputs
        outputs = inputs.transpose(0, 1)
        for layer in range(self._layers):
            weight_ih, weight_hh, bias_ih, bias_hh = parameters[4 * layer : 4 * layer + 4]
            projected = functional.linear(outputs, weight_ih, bias_ih + bias_hh)
            outputs, *_ = _LstmLayer.apply(projected, weight_hh.to(projected.dtype))  # type: ignore[no-untyped-call]
        return outputs.transpose(0, 1)


class _LstmLayer(torch.autograd.Function):
    """The recurrence of one layer, given the projected inputs of all steps, shape (length, num_samples, 4 · hidden).

    Its backward pass needs one product per step, and fewer kernels than autograd's: factors that depend only on the
    states are computed before the loop over the steps, and the gradient of the weights after it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(projected: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the outputs, cells, sigmoids of the gates and candidates (tanh of the third gate) of all steps."""
        steps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for inputs in projected.unbind():
            gates = torch.addmm(inputs, steps[-1][0], weight.t()) if steps else inputs
            sigmoids, candidate = torch.sigmoid(gates), torch.tanh(gates.chunk(4, -1)[2])
            enter, forget, _, leave = sigmoids.chunk(4, -1)
            cell = enter * candidate
            if steps:
                cell = cell + forget * steps[-1][1]
            steps.append((leave * torch.tanh(cell), cell, sigmoids, candidate))
        outputs, cells, sigmoids, candidates = (torch.stack(column) for column in zip(*steps, strict=True))
        return outputs, cells, sigmoids, candidates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(inputs[1], *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        weight, outputs, cells, sigmoids, candidates = ctx.saved_tensors
        enter, forget, _, leave = sigmoids.chunk(4, -1)
        squashed = torch.tanh(cells)
        previous = torch.cat([torch.zeros_like(cells[:1]), cells[:-1]])
        slopes = (  # derivatives with respect to the gates: of the cell, and for the last gate, of the output
            candidates * enter * (1 - enter),
            previous * forget * (1 - forget),
            enter * (1 - candidates * candidates),
            squashed * leave * (1 - leave),
        )
        columns = gradient, torch.stack(slopes, -2), leave * (1 - squashed * squashed), forget
        gates: list[Tensor] = []  # their gradients, last step first
        cell = torch.zeros_like(cells[0])
        for output, slope, to_cell, forget_one in zip(*(reversed(column.unbind()) for column in columns), strict=True):
            if gates:
                output = torch.addmm(output, gates[-1], weight)
            cell = cell + output * to_cell
            gates.append((torch.stack((cell, cell, cell, output), -2) * slope).flatten(-2))
            cell = cell * forget_one
        all_gates = torch.stack(gates[::-1])
        return all_gates, all_gates[1:].flatten(0, 1).t() @ outputs[:-1].flatten(0, 1)


class CharTransformer(nn.Module):
    """A small decoder-only transformer that predicts the next token at each position, without dropout.

    Its layers normalize their inputs and have causal attention and a hidden layer of 4 · width units; positions are
    learned and weights initialized as in GPT-2 (Radford et al. 2019). It has 427,600 parameters for 80 tokens.
    """

    def __init__(self, num_tokens: int, length: int = 80, width: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width)
        self.position = nn.Parameter(torch.empty(length, width))
        self.layers = nn.Sequential(*[_TransformerLayer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, num_tokens)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                is_residual = name.endswith(("project.weight", "contract.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if is_residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, shape (num_samples, num_tokens, length), of integer tokens, shape (num_samples, length).

        Sequences may be shorter than the model's length.
        """
        hidden = self.layers(self.embedding(tokens) + self.position[: tokens.shape[1]])
        logits: Tensor = self.out(self.norm(hidden))
        return logits.transpose(1, 2)


class _TransformerLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.project(self._attention(self.norm1(hidden)))
        change: Tensor = self.contract(functional.gelu(self.expand(self.norm2(hidden))))
        return hidden + change

    def _attention(self, hidden: Tensor) -> Tensor:
        """Return causal self-attention: for each position, a weighted mean of the values up to this position.

        The gradient of torch's scaled_dot_product_attention has no batching rule: under vmap it loops over the models.
        """
        parts = self.attend(hidden).unflatten(-1, (3, self._heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()  # each (num_samples, heads, length, width / heads)
        future = torch.ones(2 * hidden.shape[1:2], dtype=torch.bool, device=hidden.device).triu(1)
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        means: Tensor = weights @ value
        return means.transpose(1, 2).flatten(2)
