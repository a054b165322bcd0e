# SPDX-License-Identifier: Apache-2.0
"""Damage programs at the places that are read, and read them as the tools do."""
