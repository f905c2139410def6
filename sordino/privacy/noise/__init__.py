"""The laws of noise and the sources it is drawn from."""
