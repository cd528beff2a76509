"""Makes `import torchvision` succeed although its compiled operators, which are not used, do not match torch's version.

On import, its Python code refers to two of these operators, which must therefore be defined before.
"""

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    LIBRARY.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
