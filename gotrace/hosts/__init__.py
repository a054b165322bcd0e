# SPDX-License-Identifier: Apache-2.0
"""Other hosts and pods: their names, and commands that run there by SSH or kubectl.

Imports nothing of gotrace but errors and text. Start with ``run.py``.
"""
