"""Guests with other kernels, and what the tools are held to in them."""
