"""Networks, losses and kinds of labels."""
