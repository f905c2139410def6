"""Networks that make labelled images or features from noise, and how they are trained. A generator's state is a plain dict of float32 tensors."""
