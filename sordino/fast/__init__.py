"""Fast arithmetic: kernels and factored matrices, to the same numbers as torch."""
