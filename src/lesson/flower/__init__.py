"""The strategies of this package on real clients, through Flower; see docs/how-to/flower.md.

Names are imported on first use. Flower starts a process for every message to a client, and this process should load
neither the server nor the reporting libraries.
"""

import lazy_loader

try:
    import flwr  # noqa: F401
except ImportError:
    remedy = "run pip install 'lesson-fl[flower]', or 'lesson-fl[flower-simulation]' for Flower's simulation engine"
    raise ImportError(f"Flower is not installed; {remedy}") from None

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
