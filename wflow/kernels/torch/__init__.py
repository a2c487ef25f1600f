"""Exact sums by PyTorch: `sums` chooses between `tiles` (matrix products, any device) and
`triton` (one fused kernel, CUDA and small d). Start with `sums`.
"""
