"""Transport: signed letters between a server and its clients, and the pipes that carry them. Bytes of tensors are
`engine/wire.py`.
"""
