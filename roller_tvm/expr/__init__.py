"""Tensor expressions: axes, affine accesses, stages, footprints."""
