"""Fast computation of the same numbers: kernels, factored matrices, threads, and memory that processes share."""
