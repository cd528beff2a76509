"""Lets several worker processes of pfl share one GPU.

pfl gives worker i of torchrun the GPU i and connects workers by NCCL, which refuses two of them on the same GPU.
"""

import os
from typing import Any

import torch
from torch import distributed

if torch.cuda.is_available() and "RANK" in os.environ:
    os.environ["LOCAL_RANK"] = "0"
    connect = distributed.init_process_group

    def connect_by_gloo(*_: Any, **options: Any) -> None:
        """Connect the workers by gloo, whichever backend is asked for."""
        connect(**options | {"backend": "gloo"})

    distributed.init_process_group = connect_by_gloo
