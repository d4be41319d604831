"""Data breakpoints: stops where a tensor, a parameter, a gradient or a buffer changes.

Nothing intercepts a write to memory. What is watched is compared at boundaries: where modules are
entered and left, where a backward pass begins, ends and brings a gradient, and around an
optimizer's step. With precision "op" each operation is one.
"""
