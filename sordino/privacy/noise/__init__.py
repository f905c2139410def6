"""Noise laws, and the sources that noise is drawn from."""
