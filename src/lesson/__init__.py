"""Semi-synchronous federated learning on unequal, wireless clients.

    import lesson
    study = lesson.compare(["lesson", "fedavg", "fedcs"], beta=0.1, time_budget_s=5000)
    study.table()

`__init__.pyi` lists the names. They are imported when they are first used: `import lesson` loads neither torch nor
pandas, and takes a tenth of a second.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
