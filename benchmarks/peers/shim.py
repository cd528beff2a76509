"""Lets `import torchvision` pass where its compiled operators do not fit the torch beside it. Nothing here uses them.

Its Python part describes two of them when it is imported, and torch must have heard of those before.
"""

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    LIBRARY.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
