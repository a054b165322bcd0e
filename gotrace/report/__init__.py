"""Render records as text and JSON on a stream handed in."""
