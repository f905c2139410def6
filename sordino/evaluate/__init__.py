"""What came out: accuracy, loss, traffic."""
