# SPDX-License-Identifier: Apache-2.0
"""Results as data: what rows of each kind have, and what is made of them whatever their kind.

``kinds`` declares each kind of row once; ``rows`` is what declarations are made of, and reads what
``--json`` writes. ``merging`` adds recordings of several hosts up, ``changes`` compares two. It
imports nothing above ``histogram``: start reading at ``kinds``.
"""
