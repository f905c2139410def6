"""Readers: interfaces by which client code reads examples, each with the noise and the guarantee that go with it."""
