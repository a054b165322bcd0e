# SPDX-License-Identifier: Apache-2.0
"""Wheel, Debian package and image, in root file systems of their own; pages in a browser.

What takes long is left to GOTRACE_PACKAGES=1, which ``make test-packages`` sets.
"""
