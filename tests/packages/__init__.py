# SPDX-License-Identifier: Apache-2.0
"""The Debian package and the image: made, and used in root file systems of their own.

What takes long is left to GOTRACE_PACKAGES=1, which ``make test-packages`` sets.
"""
