"""Runs: experiments that are executed into a run folder, round by round, and resumed from it."""
