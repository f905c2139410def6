"""Privacy mechanisms at the two places where data of a client are read or sent: readers and the uplink. Both can clip
and add noise.

`readers` decide how client code may use examples, `uplink` decides what the server may see of uploads.
"""
