"""Every compiled loop and nothing else: arrays in, arrays out. `docs/kernels.md` explains them."""
