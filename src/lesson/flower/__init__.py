"""The strategies of this package on real clients, through Flower; see docs/how-to/flower.md.

Names are imported when they are first used: a client's process, which Flower starts for every message, then loads
neither the server nor what reports need.
"""

import lazy_loader

try:
    import flwr  # noqa: F401
except ImportError:
    remedy = "run pip install 'lesson-fl[flower]', or 'lesson-fl[flower-simulation]' for Flower's simulation engine"
    raise ImportError(f"Flower is not installed; {remedy}") from None

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
