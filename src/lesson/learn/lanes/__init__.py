"""Many runs trained by one process, which a GPU needs to be busy. Each run is a lane.

The clock, the files and the bookkeeping of a run stay in a process of its own, which records what to compute: programs
(program.py) on numbered slots instead of tensors (vectors.py). The process with the GPU executes the programs of all
lanes, wave by wave (server.py, machine.py).
"""
