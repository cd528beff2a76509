"""Lets several worker processes of pfl share one GPU.

pfl assigns GPU i to worker i of torchrun and connects the workers through NCCL, which refuses two workers on one GPU.
Here, all workers use GPU 0 and gloo.
"""

import os
from typing import Any

import torch
from torch import distributed

if torch.cuda.is_available() and "RANK" in os.environ:
    os.environ["LOCAL_RANK"] = "0"
    connect = distributed.init_process_group

    def connect_by_gloo(*_: Any, **options: Any) -> None:
        """Connect the workers through gloo, whichever backend is requested."""
        connect(**options | {"backend": "gloo"})

    distributed.init_process_group = connect_by_gloo
