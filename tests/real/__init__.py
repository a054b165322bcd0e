# SPDX-License-Identifier: Apache-2.0
"""Real programs and rough treatment: what the tools do to, and for, what users have.

Only with GOTRACE_REAL=1, which ``make test-real`` sets.
"""
