"""The two gates, and the noise that they draw.

`readers` decide how client code may look at examples, `uplink` decides what the server may see of uploads.
"""
