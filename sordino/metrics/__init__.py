"""Metrics: accuracy, loss and traffic."""
