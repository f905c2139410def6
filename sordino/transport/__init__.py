"""Transport: signed messages between a server and its clients, and the pipes that carry them. The bytes of tensors are
defined in `engine/wire.py`.
"""
