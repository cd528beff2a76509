"""Training and evaluation on an NVIDIA GPU: the same draws and formulas, as CUDA graphs."""
