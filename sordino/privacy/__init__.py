"""Two gates that clip and add noise: where rows are read, and where uploads leave.

`readers` decide how client code may look at examples, `uplink` decides what the server may see of uploads.
"""
