"""Training and evaluation on an NVIDIA GPU, with the draws and formulas of the CPU trainers, as CUDA graphs."""
