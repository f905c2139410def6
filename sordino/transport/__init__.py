"""Transport: messages between a server and its clients, and the pipes that carry them."""
