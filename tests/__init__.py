# SPDX-License-Identifier: Apache-2.0
"""Test gotrace: one directory per package, Go fixtures compiled on demand."""
