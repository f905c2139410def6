"""Two gates that clip and add noise: where client code reads rows, and where uploads leave a client.

`readers` decide how client code may look at examples, `uplink` decides what the server may see of uploads.
"""
