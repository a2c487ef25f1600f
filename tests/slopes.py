"""Gradients of torch against central differences."""

import torch


def assert_slopes(value, inputs, step=1e-6, tolerance=1e-6):
    """Assert that the gradients of `value()` are those of differences in random directions."""
    slopes = torch.autograd.grad(value(), inputs, allow_unused=True)
    for number, (x, slope) in enumerate(zip(inputs, slopes, strict=True)):
        generator = torch.Generator().manual_seed(number)
        direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        ends = []
        with torch.no_grad():
            for shift in (step, -2 * step, step):
                x.add_(direction, alpha=shift)
                ends.append(float(value()))
        expected = (ends[0] - ends[1]) / (2 * step)
        found = 0.0 if slope is None else float((slope * direction).sum())
        assert abs(found - expected) < tolerance * (1 + abs(expected)), number
