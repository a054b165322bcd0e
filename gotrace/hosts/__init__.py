# SPDX-License-Identifier: Apache-2.0
"""Other hosts: their names, and commands that run there over SSH.

Imports nothing of gotrace but errors and text. Start with ``run.py``.
"""
