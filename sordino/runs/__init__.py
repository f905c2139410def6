"""Runs: rows, phases and rounds that are played into a folder, and resumed from it."""
