"""A run as it goes on, in a browser"""
