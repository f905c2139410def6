"""Runs: experiments that are executed into a run folder, phase by phase and round by round, and resumed from it."""
