"""Networks that draw labelled images or features from noise.

A generator's state is a plain dict of float32 tensors.
"""
