# SPDX-License-Identifier: Apache-2.0
"""Guests with other kernels, and what the tools are held to in them."""
