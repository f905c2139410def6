"""Programs that measure; `BENCHMARKS.md` says how to run them."""
